/*
 * Liveness of SDBFT in one epoch, as a temporal property: however the network and the faulty seat have behaved, once
 * the network delivers, a block becomes final at every honest seat in one of the next two views that are entered
 * (docs/spec/consensus.md R1 to R5 and 5; the timers of section 6 as "whoever waits, waits for all that is under way").
 *
 *   python -m tests.model.spin 2
 *
 * Four seats of one vote each. Seats 0, 1 and 2 are honest; seat 3 lies, and leads every fourth view from FAULTY_LEADS
 * on. A certificate takes three of the four votes: with the help of the faulty seat, two honest ones. It helps when and
 * where it likes, shows each seat another of its two blocks on any parent, and says nothing any more once the network is good;
 * with -DTALKS_ON it goes on until it pleases to stop, which makes more than a hundred times as many states.
 *
 * Before the network is good (GST) each honest seat learns what it happens to learn, and times out when it likes; views
 * up to BAD_VIEWS can be entered and ended so. Votes only ever become more, so every run ends, and "eventually" is
 * asked of runs that stopped as well.
 */

#ifndef FAULTY_LEADS
#define FAULTY_LEADS 1
#endif
#ifndef BAD_VIEWS
#define BAD_VIEWS 1
#endif
#define VIEWS (BAD_VIEWS + 3)
#define STRIDE (VIEWS + 1)
#define HONEST 3
#define NONE 0

#define AT(seat, view) ((seat) * STRIDE + (view))

/* A candidate: the view of its parent, and which of the leader's blocks it is (an honest leader makes one). */
#define CANDIDATE(parent, which) (1 + 2 * (parent) + (which))
#define PARENT(candidate) (((candidate) - 1) / 2)

/* Seat 0 leads the view after the faulty one, and so on. */
#define TURN(view) (((view) + 4 - FAULTY_LEADS) % 4)
#define LEADS(seat, view) (TURN(view) == (seat) + 1)
#define IS_FAULTY(view) (TURN(view) == 0)

byte notarized[HONEST * STRIDE];  /* which candidate a seat has voted NOTARIZE for */
bit nullified[HONEST * STRIDE];
bit finalized[HONEST * STRIDE];
bit knows_notar[HONEST * STRIDE]; /* the certificates that a seat holds */
bit knows_null[HONEST * STRIDE];
bit knows_final[HONEST * STRIDE];
byte current[HONEST];
byte proposal[STRIDE];            /* of an honest leader */
byte certified[STRIDE];           /* the candidate of a view's NOTARIZE certificate, once somebody holds it */
byte last_bad;                    /* the newest view that anybody was in when the network became good */
bit is_good, is_silent;

/* --- what votes amount to */

#define FOR(view, what) \
  ((notarized[AT(0, view)] == what) + (notarized[AT(1, view)] == what) + (notarized[AT(2, view)] == what))
#define MAJORITY(view) \
  (notarized[AT(0, view)] && FOR(view, notarized[AT(0, view)]) >= 2 -> notarized[AT(0, view)] : \
   (notarized[AT(1, view)] && notarized[AT(1, view)] == notarized[AT(2, view)] -> notarized[AT(1, view)] : NONE))
#define NOTARIZES(view) (MAJORITY(view) -> FOR(view, MAJORITY(view)) : 0)
#define NULLIFIES(view) (nullified[AT(0, view)] + nullified[AT(1, view)] + nullified[AT(2, view)])
#define FINALIZES(view) (finalized[AT(0, view)] + finalized[AT(1, view)] + finalized[AT(2, view)])

#define HELD(known, view) (known[AT(0, view)] || known[AT(1, view)] || known[AT(2, view)])
#ifdef CHANGED_KEEPS_CERTIFICATES
#define REACHES(count, known, view) ((count) == 3)
#else
#define REACHES(count, known, view) ((count) == 3 || HELD(known, view))
#endif

/* In a good network what honest votes make, or any honest seat holds, comes to everybody (R2, R7). */
#define MUST_LEARN(seat, count, known, view) (!known[AT(seat, view)] && REACHES(count, known, view))
/* With the faulty seat's help it may come to this one. */
#define MAY_LEARN(seat, count, known, view) \
  (!known[AT(seat, view)] && (count) >= 2 && (MUST_LEARN(seat, count, known, view) || !is_silent))

/* --- what a seat may conclude */

#define HAS_BLOCK(seat, view) ((view) == 0 || knows_notar[AT(seat, view)] || knows_final[AT(seat, view)])
#define IS_SKIPPED(seat, parent, view, between) \
  ((between) <= (parent) || (between) >= (view) || (between) > VIEWS || knows_null[AT(seat, (between) % STRIDE)])
/* R3: the parent is certified, and every view since is nullified. */
#define MAY_EXTEND(seat, parent, view) ((parent) < (view) && HAS_BLOCK(seat, parent) && \
  IS_SKIPPED(seat, parent, view, 1) && IS_SKIPPED(seat, parent, view, 2) && IS_SKIPPED(seat, parent, view, 3) && \
  IS_SKIPPED(seat, parent, view, 4) && IS_SKIPPED(seat, parent, view, 5))
#define MAY_EXTEND_ANY(seat, view) (MAY_EXTEND(seat, 0, view) || MAY_EXTEND(seat, 1, view) || \
  MAY_EXTEND(seat, 2, view) || MAY_EXTEND(seat, 3, view) || MAY_EXTEND(seat, 4, view))
#define NEWEST_PARENT(seat, view) \
  (MAY_EXTEND(seat, 4, view) -> 4 : (MAY_EXTEND(seat, 3, view) -> 3 : (MAY_EXTEND(seat, 2, view) -> 2 : \
   (MAY_EXTEND(seat, 1, view) -> 1 : 0))))

#define IS_IN(seat) (current[seat] <= VIEWS && (is_good || current[seat] <= BAD_VIEWS))
#define IS_FRESH(seat) (IS_IN(seat) && !notarized[AT(seat, current[seat])] && !nullified[AT(seat, current[seat])])
#define MAY_PROPOSE(seat) \
  (IS_FRESH(seat) && LEADS(seat, current[seat]) && MAY_EXTEND_ANY(seat, current[seat]))
#define MAY_FOLLOW(seat) (IS_FRESH(seat) && proposal[current[seat]] && \
  MAY_EXTEND(seat, PARENT(proposal[current[seat]]), current[seat]))
#define MAY_FALL_FOR(seat, parent) \
  (!is_silent && IS_FRESH(seat) && IS_FAULTY(current[seat]) && MAY_EXTEND(seat, parent, current[seat]))
#ifdef CHANGED_FINALIZE_NEEDS_NOTARIZE
#define MAY_SAY_FINAL(seat, view) (notarized[AT(seat, view)] == certified[view])
#else
#define MAY_SAY_FINAL(seat, view) true
#endif
/* R5 */
#define MAY_FINALIZE(seat, view) (knows_notar[AT(seat, view)] && !nullified[AT(seat, view)] && \
  !finalized[AT(seat, view)] && MAY_SAY_FINAL(seat, view))

/* --- whether anything is under way that a seat waits for */

#define LEARNS(seat, view) (MUST_LEARN(seat, NOTARIZES(view), knows_notar, view) || \
  MUST_LEARN(seat, NULLIFIES(view), knows_null, view) || MUST_LEARN(seat, FINALIZES(view), knows_final, view))
#define IN_VIEW(seat, view) (LEARNS(seat, view) || MAY_FINALIZE(seat, view))
#define MOVES(seat) (MAY_PROPOSE(seat) || MAY_FOLLOW(seat) || IN_VIEW(seat, 1) || IN_VIEW(seat, 2) || \
  IN_VIEW(seat, 3) || IN_VIEW(seat, 4) || (VIEWS == 5 && IN_VIEW(seat, VIEWS)))
#define IS_QUIET (!MOVES(0) && !MOVES(1) && !MOVES(2))

#if defined(CHANGED_NO_NULLIFY_AFTER_NOTARIZE)
#define MAY_STILL(seat) (!notarized[AT(seat, current[seat])])
#elif defined(CHANGED_NO_NULLIFY_WITHOUT_PROPOSAL)
#define MAY_STILL(seat) (notarized[AT(seat, current[seat])])
#else
#define MAY_STILL(seat) true
#endif
/* R4. A timer of a view that was entered in bad times may end before what the good network brings. */
#define MAY_TIME_OUT(seat) (IS_IN(seat) && !nullified[AT(seat, current[seat])] && \
  !finalized[AT(seat, current[seat])] && MAY_STILL(seat) && (!is_good || current[seat] <= last_bad || IS_QUIET))

/* R2 */
#define ADVANCE(seat, view) \
  if \
  :: current[seat] <= view -> current[seat] = view + 1 \
  :: else \
  fi

#define LEARN(view) \
  :: atomic { view <= VIEWS && (is_good || view <= BAD_VIEWS) && \
       MAY_LEARN(me, NOTARIZES(view), knows_notar, view) -> \
       assert(!certified[view] || certified[view] == MAJORITY(view)); \
       certified[view] = MAJORITY(view); knows_notar[AT(me, view)] = 1; ADVANCE(me, view) } \
  :: atomic { view <= VIEWS && (is_good || view <= BAD_VIEWS) && \
       MAY_LEARN(me, NULLIFIES(view), knows_null, view) -> \
       assert(FINALIZES(view) < 2); knows_null[AT(me, view)] = 1; ADVANCE(me, view) } \
  :: atomic { view <= VIEWS && (is_good || view <= BAD_VIEWS) && \
       MAY_LEARN(me, FINALIZES(view), knows_final, view) -> \
       assert(NULLIFIES(view) < 2); knows_final[AT(me, view)] = 1; ADVANCE(me, view) } \
  :: atomic { view <= VIEWS && MAY_FINALIZE(me, view) -> finalized[AT(me, view)] = 1 }

#define FALL_FOR(parent) \
  :: atomic { MAY_FALL_FOR(me, parent) -> notarized[AT(me, current[me])] = CANDIDATE(parent, 0) } \
  :: atomic { MAY_FALL_FOR(me, parent) && FOR(current[me], CANDIDATE(parent, 0)) -> \
       notarized[AT(me, current[me])] = CANDIDATE(parent, 1) }

proctype Seat(byte me) {
end:
  do
  :: atomic { MAY_PROPOSE(me) ->
       notarized[AT(me, current[me])] = CANDIDATE(NEWEST_PARENT(me, current[me]), 0);
       proposal[current[me]] = notarized[AT(me, current[me])] }
  :: atomic { MAY_FOLLOW(me) -> notarized[AT(me, current[me])] = proposal[current[me]] }
  FALL_FOR(0)
  FALL_FOR(1)
  FALL_FOR(2)
  FALL_FOR(3)
  FALL_FOR(4)
  LEARN(1)
  LEARN(2)
  LEARN(3)
  LEARN(4)
#if BAD_VIEWS == 2
  LEARN(5)
#endif
  :: atomic { MAY_TIME_OUT(me) -> nullified[AT(me, current[me])] = 1 }
  od
}

#define NEWER(one, other) (current[one] > current[other] -> current[one] : current[other])

proctype World() {
  byte newest;
end:
  do
  :: atomic { !is_good ->
       is_good = 1;
#ifndef TALKS_ON
       is_silent = 1;
#endif
       newest = NEWER(0, 1);
       last_bad = (current[2] > newest -> current[2] : newest);
       newest = 0 }
  :: atomic { is_good && !is_silent -> is_silent = 1 }
  od
}

init {
  atomic {
    current[0] = 1; current[1] = 1; current[2] = 1;
    run Seat(0); run Seat(1); run Seat(2); run World()
  }
}

#define FINAL_EVERYWHERE(view) \
  (is_good && (view) > last_bad && (view) <= VIEWS && knows_final[AT(0, (view) % STRIDE)] && \
   knows_final[AT(1, (view) % STRIDE)] && knows_final[AT(2, (view) % STRIDE)])

ltl live { <> (FINAL_EVERYWHERE(1) || FINAL_EVERYWHERE(2) || FINAL_EVERYWHERE(3) || FINAL_EVERYWHERE(4) ||
               FINAL_EVERYWHERE(5)) }
