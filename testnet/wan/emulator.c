/* Lines of a wide-area network between network namespaces of one machine.
 *
 * Each public host has a TUN device in its namespace, all held by this process. A packet that a host sends is looked
 * up by its destination and then passes a chain of one-way pipes: the sender's line, the link of the pair, the
 * receiver's line. A pipe has a rate with a drop-tail queue, a delay, jitter and losses, each kept as one list of
 * packets in the order in which they leave; a heap holds the pipes by when their first packet does.
 *
 * usage: emulator FILE     lines of FILE:
 *   control PATH                          socket for commands (sequenced packets, one command and one answer each)
 *   mtu N | packets N | seed N            largest packet; packets held at once; of the random numbers
 *   host NAMESPACE DEVICE IPV4 PREFIX     the n-th host; PREFIX is the /64 of the site
 *   pipe KEY=NUMBER...                    the n-th pipe; keys in set_key below; rate 0 is unlimited
 *   route FROM TO PIPE...                 by the numbers of hosts and pipes
 * commands: "set PIPE KEY=NUMBER...", "stats PATH" (writes JSON there), "reset", "quit".
 *
 * Times are nanoseconds of the monotonic clock. Rates count whole IP packets, in bits a second.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    HOSTS_MAX = 256,
    STAGES_MAX = 3,
    READS_AT_ONCE = 16,
    CONTROLS_MAX = 8,
    LINE_MAX_BYTES = 1024,
    NEAR_NS = 15000, /* what is due so soon is done now: cheaper than a timer for it, and less late than most */
    BILLION = 1000000000,
    PPM = 1000000,
};
enum { TAG_TIMER = HOSTS_MAX, TAG_SIGNAL, TAG_LISTEN, TAG_CONTROL };

struct packet {
    struct packet *next;
    int64_t due;
    uint16_t size, from, to, stage;
    uint8_t bytes[];
};

struct pipe {
    double rate;
    int64_t delay, jitter, queue_max;
    uint32_t loss_ppm, burst_in_ppb, burst_out_ppb, burst_loss_ppm;
    int keeps_order, is_down;

    int64_t free_at; /* when its transmitter has sent all it took; the queue in bytes follows from it */
    int64_t last_due;
    int in_burst;
    struct packet *first, *last;
    int place; /* in the heap; -1: empty */

    uint64_t in, in_bytes, out, out_bytes, overflows, losses;
    int64_t queue_peak;
};

struct route {
    int count;
    int pipes[STAGES_MAX];
};

struct host {
    int fd;
    char name[64], device[IFNAMSIZ];
    uint32_t ip4;
    uint8_t prefix[8];
    uint64_t sent, received, unroutable, refused;
};

static struct host hosts[HOSTS_MAX];
static int host_count;
static struct pipe *pipes;
static int pipe_count, *heap, heap_count;
static struct route *routes;
static struct packet *spare;
static size_t packets_held, packets_made, packets_max = 200000, mtu = 1500;
static uint64_t no_buffer, lateness[8], random_state = 1;
static int64_t latest;
static const int64_t late_bounds[7] = {50000, 100000, 200000, 500000, 1000000, 2000000, 5000000};

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "emulator: ");
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * (int64_t)BILLION + time.tv_nsec;
}

/* splitmix64 */
static uint64_t draw(void)
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static int happens(uint64_t part, uint64_t whole)
{
    return part && (part >= whole || (draw() >> 11) % whole < part);
}

static struct packet *take_packet(void)
{
    struct packet *packet = spare;
    if (packet)
        spare = packet->next;
    else if (packets_made == packets_max || !(packet = malloc(sizeof *packet + mtu)))
        return NULL;
    else
        packets_made++;
    packets_held++;
    return packet;
}

static void put_back(struct packet *packet)
{
    packet->next = spare;
    spare = packet;
    packets_held--;
}

static int64_t due_of(int place) { return pipes[heap[place]].first->due; }

static void set_place(int place, int pipe)
{
    heap[place] = pipe;
    pipes[pipe].place = place;
}

/* Move a pipe whose first packet changed to where it belongs. */
static void sift(int place)
{
    int pipe = heap[place];
    int64_t due = pipes[pipe].first->due;
    while (place && due_of((place - 1) / 2) > due) {
        set_place(place, heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    for (;;) {
        int child = 2 * place + 1;
        if (child + 1 < heap_count && due_of(child + 1) < due_of(child))
            child++;
        if (child >= heap_count || due_of(child) >= due)
            break;
        set_place(place, heap[child]);
        place = child;
    }
    set_place(place, pipe);
}

static void line_up(struct pipe *pipe, struct packet *packet)
{
    struct packet **at = &pipe->first;
    if (pipe->first && pipe->last->due <= packet->due)
        at = &pipe->last->next;
    else
        while (*at && (*at)->due <= packet->due)
            at = &(*at)->next;
    packet->next = *at;
    *at = packet;
    if (!packet->next)
        pipe->last = packet;
    if (pipe->place < 0) {
        pipe->place = heap_count;
        heap[heap_count++] = (int)(pipe - pipes);
        sift(pipe->place);
    } else if (pipe->first == packet)
        sift(pipe->place);
}

static struct packet *take_first(struct pipe *pipe)
{
    struct packet *packet = pipe->first;
    int place = pipe->place;
    pipe->first = packet->next;
    if (pipe->first)
        sift(place);
    else {
        pipe->last = NULL;
        pipe->place = -1;
        if (place != --heap_count) {
            set_place(place, heap[heap_count]);
            sift(place);
        }
    }
    return packet;
}

static struct route *route_of(const struct packet *packet) { return &routes[packet->from * host_count + packet->to]; }

static void enter(struct packet *packet, int64_t at)
{
    struct pipe *pipe = &pipes[route_of(packet)->pipes[packet->stage++]];
    pipe->in++;
    pipe->in_bytes += packet->size;
    if (pipe->free_at < at)
        pipe->free_at = at;
    if (pipe->rate > 0) {
        int64_t waiting = (int64_t)((double)(pipe->free_at - at) * pipe->rate / (8.0 * BILLION)) + packet->size;
        if (waiting > pipe->queue_max) {
            pipe->overflows++;
            put_back(packet);
            return;
        }
        if (waiting > pipe->queue_peak)
            pipe->queue_peak = waiting;
        pipe->free_at += (int64_t)(packet->size * 8.0 * BILLION / pipe->rate);
    }
    if (pipe->burst_in_ppb)
        pipe->in_burst = pipe->in_burst ? !happens(pipe->burst_out_ppb, BILLION) : happens(pipe->burst_in_ppb, BILLION);
    if (pipe->is_down || happens(pipe->loss_ppm, PPM) || (pipe->in_burst && happens(pipe->burst_loss_ppm, PPM))) {
        pipe->losses++;
        put_back(packet);
        return;
    }
    packet->due = pipe->free_at + pipe->delay;
    if (pipe->jitter)
        packet->due += (int64_t)(draw() % (uint64_t)(pipe->jitter + 1));
    if (pipe->keeps_order) {
        if (packet->due < pipe->last_due)
            packet->due = pipe->last_due;
        pipe->last_due = packet->due;
    }
    pipe->out++;
    pipe->out_bytes += packet->size;
    line_up(pipe, packet);
}

static void hand_over(struct packet *packet, int64_t time)
{
    int64_t late = time - packet->due;
    int bin = 0;
    while (bin < 7 && late >= late_bounds[bin])
        bin++;
    lateness[bin]++;
    if (late > latest)
        latest = late;
    struct host *host = &hosts[packet->to];
    if (write(host->fd, packet->bytes, packet->size) == packet->size)
        host->received++;
    else
        host->refused++;
    put_back(packet);
}

static void work_off(void)
{
    int64_t time = now();
    while (heap_count && due_of(0) <= time + NEAR_NS) {
        struct packet *packet = take_first(&pipes[heap[0]]);
        if (packet->stage < route_of(packet)->count)
            enter(packet, packet->due);
        else
            hand_over(packet, time);
    }
}

static int find_host(const struct packet *packet)
{
    if (packet->size >= 20 && packet->bytes[0] >> 4 == 4) {
        for (int n = 0; n < host_count; n++)
            if (!memcmp(&hosts[n].ip4, packet->bytes + 16, 4))
                return n;
    } else if (packet->size >= 40 && packet->bytes[0] >> 4 == 6) {
        for (int n = 0; n < host_count; n++)
            if (!memcmp(hosts[n].prefix, packet->bytes + 24, 8))
                return n;
    }
    return -1;
}

static void take_from(int from)
{
    for (int n = 0; n < READS_AT_ONCE; n++) {
        struct packet *packet = take_packet();
        if (!packet) { /* the bound is reached: read on, so that the device does not fill for ever, and forget */
            uint8_t nothing[1];
            if (read(hosts[from].fd, nothing, sizeof nothing) < 0)
                return;
            no_buffer++;
            continue;
        }
        ssize_t size = read(hosts[from].fd, packet->bytes, mtu);
        if (size <= 0) {
            put_back(packet);
            return;
        }
        hosts[from].sent++;
        packet->size = (uint16_t)size;
        int to = find_host(packet);
        if (to < 0 || to == from || !routes[from * host_count + to].count) {
            hosts[from].unroutable++;
            put_back(packet);
            continue;
        }
        packet->from = (uint16_t)from;
        packet->to = (uint16_t)to;
        packet->stage = 0;
        enter(packet, now());
    }
}

static int set_key(struct pipe *pipe, const char *key, double value)
{
    if (!strcmp(key, "rate")) pipe->rate = value;
    else if (!strcmp(key, "delay")) pipe->delay = (int64_t)value;
    else if (!strcmp(key, "jitter")) pipe->jitter = (int64_t)value;
    else if (!strcmp(key, "queue")) pipe->queue_max = (int64_t)value;
    else if (!strcmp(key, "loss_ppm")) pipe->loss_ppm = (uint32_t)value;
    else if (!strcmp(key, "burst_in_ppb")) pipe->burst_in_ppb = (uint32_t)value;
    else if (!strcmp(key, "burst_out_ppb")) pipe->burst_out_ppb = (uint32_t)value;
    else if (!strcmp(key, "burst_loss_ppm")) pipe->burst_loss_ppm = (uint32_t)value;
    else if (!strcmp(key, "keeps_order")) pipe->keeps_order = value != 0;
    else if (!strcmp(key, "down")) pipe->is_down = value != 0;
    else return 0;
    if (!pipe->burst_in_ppb)
        pipe->in_burst = 0;
    return 1;
}

static int set_keys(struct pipe *pipe, char *text)
{
    char *rest, *end;
    for (char *word = strtok_r(text, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
        char *value = strchr(word, '=');
        if (!value)
            return 0;
        *value++ = 0;
        double number = strtod(value, &end);
        if (*end || end == value || !set_key(pipe, word, number))
            return 0;
    }
    return 1;
}

static struct pipe *add_pipe(void)
{
    pipes = realloc(pipes, (size_t)(pipe_count + 1) * sizeof *pipes);
    heap = realloc(heap, (size_t)(pipe_count + 1) * sizeof *heap);
    if (!pipes || !heap)
        fail("out of memory");
    memset(&pipes[pipe_count], 0, sizeof *pipes);
    pipes[pipe_count].place = -1;
    return &pipes[pipe_count++];
}

static void add_route(char *text)
{
    char *rest;
    int ends[2] = {-1, -1}, given = 0;
    if (!routes && !(routes = calloc((size_t)(host_count * host_count), sizeof *routes)))
        fail("out of memory");
    struct route route = {0};
    for (char *word = strtok_r(text, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest), given++) {
        int number = atoi(word);
        if (number < 0 || number >= (given < 2 ? host_count : pipe_count) || given == 2 + STAGES_MAX)
            fail("a bad route");
        if (given < 2)
            ends[given] = number;
        else
            route.pipes[route.count++] = number;
    }
    if (!route.count)
        fail("a route without pipes");
    routes[ends[0] * host_count + ends[1]] = route;
}

static void load(const char *path, struct sockaddr_un *control)
{
    char line[LINE_MAX_BYTES], ip4[64], prefix[64];
    uint8_t ip6[16];
    int used;
    FILE *file = fopen(path, "r");
    if (!file)
        fail("%s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, file)) {
        struct host *host = &hosts[host_count];
        if (sscanf(line, "control %107s", control->sun_path) == 1 || sscanf(line, "mtu %zu", &mtu) == 1 ||
            sscanf(line, "packets %zu", &packets_max) == 1 || sscanf(line, "seed %" SCNu64, &random_state) == 1)
            continue;
        if (host_count < HOSTS_MAX && sscanf(line, "host %63s %15s %63s %63s", host->name, host->device, ip4, prefix) == 4) {
            if (inet_pton(AF_INET, ip4, &host->ip4) != 1 || inet_pton(AF_INET6, prefix, ip6) != 1)
                fail("a bad address: %s", line);
            memcpy(host->prefix, ip6, sizeof host->prefix);
            host_count++;
        } else if (used = -1, sscanf(line, "pipe %n", &used), used > 0) {
            if (!set_keys(add_pipe(), line + used))
                fail("a bad pipe: %s", line);
        } else if (used = -1, sscanf(line, "route %n", &used), used > 0)
            add_route(line + used);
        else
            fail("a bad line: %s", line);
    }
    fclose(file);
    if (!routes && !(routes = calloc((size_t)(host_count * host_count + 1), sizeof *routes)))
        fail("out of memory");
}

static int open_device(const struct host *host)
{
    char path[128];
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    snprintf(path, sizeof path, "/run/netns/%s", host->name);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET))
        fail("%s: %s", path, strerror(errno));
    close(space);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    memcpy(request.ifr_name, host->device, sizeof request.ifr_name);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request))
        fail("/dev/net/tun, %s in %s: %s", host->device, host->name, strerror(errno));
    return fd;
}

static const char *write_stats(const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return strerror(errno);
    fprintf(file, "{\"packets_held\":%zu,\"packets_made\":%zu,\"no_buffer\":%" PRIu64 ",\"late_max_us\":%" PRId64 ",\"late\":[",
            packets_held, packets_made, no_buffer, latest / 1000);
    for (int n = 0; n < 8; n++)
        fprintf(file, "%s%" PRIu64, n ? "," : "", lateness[n]);
    fprintf(file, "],\"hosts\":[");
    for (int n = 0; n < host_count; n++)
        fprintf(file, "%s{\"sent\":%" PRIu64 ",\"received\":%" PRIu64 ",\"unroutable\":%" PRIu64 ",\"refused\":%" PRIu64 "}",
                n ? "," : "", hosts[n].sent, hosts[n].received, hosts[n].unroutable, hosts[n].refused);
    fprintf(file, "],\"pipes\":{");
    const char *between = "";
    for (int n = 0; n < pipe_count; n++) {
        struct pipe *pipe = &pipes[n];
        if (!pipe->in)
            continue;
        fprintf(file, "%s\"%d\":{\"in\":%" PRIu64 ",\"in_bytes\":%" PRIu64 ",\"out\":%" PRIu64 ",\"out_bytes\":%" PRIu64, between, n,
                pipe->in, pipe->in_bytes, pipe->out, pipe->out_bytes);
        fprintf(file, ",\"overflows\":%" PRIu64 ",\"losses\":%" PRIu64 ",\"queue_peak_bytes\":%" PRId64 "}",
                pipe->overflows, pipe->losses, pipe->queue_peak);
        between = ",";
    }
    fprintf(file, "}}\n");
    return fclose(file) ? strerror(errno) : "ok";
}

static void reset_stats(void)
{
    for (struct pipe *pipe = pipes; pipe < pipes + pipe_count; pipe++) {
        pipe->in = pipe->in_bytes = pipe->out = pipe->out_bytes = pipe->overflows = pipe->losses = 0;
        pipe->queue_peak = 0;
    }
    for (struct host *host = hosts; host < hosts + host_count; host++)
        host->sent = host->received = host->unroutable = host->refused = 0;
    memset(lateness, 0, sizeof lateness);
    latest = 0;
    no_buffer = 0;
}

/* Answer one command; whether to go on. */
static int obey(int fd, int *is_open)
{
    char command[LINE_MAX_BYTES];
    const char *answer = "bad command";
    int number, used = -1, goes_on = 1;
    ssize_t size = recv(fd, command, sizeof command - 1, MSG_DONTWAIT);
    *is_open = size > 0 || (size < 0 && errno == EAGAIN);
    if (size <= 0)
        return 1;
    command[size] = 0;
    if (sscanf(command, "set %d %n", &number, &used) == 1 && used > 0 && number >= 0 && number < pipe_count) {
        struct pipe changed = pipes[number];
        if (set_keys(&changed, command + used)) {
            pipes[number] = changed;
            answer = "ok";
        }
    } else if (!strncmp(command, "stats ", 6))
        answer = write_stats(command + 6);
    else if (!strcmp(command, "reset")) {
        reset_stats();
        answer = "ok";
    } else if (!strcmp(command, "quit")) {
        answer = "ok";
        goes_on = 0;
    }
    send(fd, answer, strlen(answer), MSG_DONTWAIT | MSG_NOSIGNAL);
    return goes_on;
}

static void watch(int poll, int fd, uint32_t tag, int control)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = tag | (uint64_t)control << 32};
    if (fd < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event))
        fail("cannot watch: %s", strerror(errno));
}

int main(int count, char **arguments)
{
    struct sockaddr_un control = {.sun_family = AF_UNIX};
    if (count != 2)
        fail("usage: emulator FILE");
    load(arguments[1], &control);
    for (int n = 0; n < host_count; n++)
        hosts[n].fd = open_device(&hosts[n]);
    prctl(PR_SET_TIMERSLACK, 1UL);
    struct sched_param first = {.sched_priority = 1}; /* the cables run before the machines that use them */
    if (sched_setscheduler(0, SCHED_FIFO, &first))
        fprintf(stderr, "emulator: no real-time priority: %s\n", strerror(errno));
    mlockall(MCL_CURRENT);

    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    int poll = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    unlink(control.sun_path);
    if (bind(listener, (struct sockaddr *)&control, sizeof control) || listen(listener, CONTROLS_MAX))
        fail("%s: %s", control.sun_path, strerror(errno));
    for (int n = 0; n < host_count; n++)
        watch(poll, hosts[n].fd, (uint32_t)n, 0);
    watch(poll, timer, TAG_TIMER, 0);
    watch(poll, signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK), TAG_SIGNAL, 0);
    watch(poll, listener, TAG_LISTEN, 0);
    puts("ready");
    fflush(stdout);

    int64_t armed = 0;
    for (int goes_on = 1; goes_on;) {
        struct epoll_event events[64];
        int ready = epoll_wait(poll, events, 64, -1), is_open;
        uint64_t expirations;
        for (int n = 0; n < ready; n++) {
            uint32_t tag = (uint32_t)events[n].data.u64;
            int fd = (int)(events[n].data.u64 >> 32);
            if (tag < HOSTS_MAX)
                take_from((int)tag);
            else if (tag == TAG_TIMER)
                armed = read(timer, &expirations, sizeof expirations) > 0 ? 0 : armed;
            else if (tag == TAG_LISTEN) {
                if ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
                    watch(poll, fd, TAG_CONTROL, fd);
            } else if (tag == TAG_CONTROL) {
                goes_on &= obey(fd, &is_open);
                if (!is_open)
                    close(fd);
            } else
                goes_on = 0;
            work_off();
        }
        int64_t due = heap_count ? due_of(0) : 0;
        if (due != armed) {
            struct itimerspec when = {.it_value = {due / BILLION, due % BILLION}};
            timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
            armed = due;
        }
    }
    unlink(control.sun_path);
    return 0;
}
