/* What a process is told wrong, by the file "disturb" of the folder it was started in:
   - nanoseconds by which its wall clock is off (timers are left alone, as a step of the machine's clock leaves them);
   - nanoseconds that each sync of a file takes longer, and whether it fails;
   - the address from which it connects to 127.0.1.x, so that links between processes can be told apart. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif
#define MEMBERS 0x7f000100u

struct disturbance {
    int64_t step_ns;
    int64_t sync_ns;
    int64_t sync_fails;
    int64_t source; /* the last byte of 127.0.1.x, 0: any */
};

static const volatile struct disturbance *told;

__attribute__((constructor)) static void begin(void)
{
    int file = open("disturb", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof(struct disturbance), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED)
        told = page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (failed || !told || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + told->step_ns;
    now->tv_sec = ns / 1000000000;
    now->tv_nsec = ns % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found))
        return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now)
        *now = found.tv_sec;
    return found.tv_sec;
}

/* What was not synced is not lost here, it only was never said to be safe. */
static int disturb_sync(void)
{
    if (!told)
        return 0;
    if (told->sync_ns) {
        struct timespec wait = {told->sync_ns / 1000000000, told->sync_ns % 1000000000};
        nanosleep(&wait, NULL);
    }
    if (told->sync_fails)
        errno = EIO;
    return told->sync_fails ? -1 : 0;
}

int fsync(int file)
{
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return disturb_sync() ? -1 : real(file);
}

int fdatasync(int file)
{
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return disturb_sync() ? -1 : real(file);
}

int connect(int socket, const struct sockaddr *to, socklen_t size)
{
    static int (*real)(int, const struct sockaddr *, socklen_t);
    if (!real)
        real = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    if (told && told->source && to && to->sa_family == AF_INET && size >= sizeof(struct sockaddr_in)) {
        const struct sockaddr_in *member = (const struct sockaddr_in *)to;
        if ((ntohl(member->sin_addr.s_addr) & 0xffffff00u) == MEMBERS) {
            struct sockaddr_in own;
            socklen_t own_size = sizeof own;
            int saved = errno, yes = 1;
            memset(&own, 0, sizeof own);
            if (!getsockname(socket, (struct sockaddr *)&own, &own_size) && own.sin_family == AF_INET &&
                own.sin_addr.s_addr == INADDR_ANY && own.sin_port == 0) {
                own.sin_addr.s_addr = htonl(MEMBERS | (uint32_t)told->source);
                setsockopt(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes);
                bind(socket, (struct sockaddr *)&own, sizeof own);
            }
            errno = saved;
        }
    }
    return real(socket, to, size);
}
