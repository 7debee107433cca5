/* A wall clock that a test sets: preloaded, it adds an offset to what a process reads.
 *
 * The offset in nanoseconds stands in an 8-byte file, named by RANKMEND_TEST_CLOCK, that is mapped: a
 * change counts at once in every process that has it. CLOCK_MONOTONIC, time-outs, sleeps and the
 * times of files stay true, as on a machine whose wall clock is set.
 *
 * build: cc -O2 -shared -fPIC -o wall_clock.so wall_clock.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t NS_PER_S = 1000000000;
static const volatile int64_t *offset_ns;
static int (*true_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("RANKMEND_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *offset_ns, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) offset_ns = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    if (!true_gettime) true_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = true_gettime(clock, out);
    if (!code && offset_ns && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t now_ns = (int64_t)out->tv_sec * NS_PER_S + out->tv_nsec + *offset_ns;
        out->tv_sec = now_ns / NS_PER_S;
        out->tv_nsec = now_ns % NS_PER_S;
    }
    return code;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int code = clock_gettime(CLOCK_REALTIME, &now);
    if (!code && out) *out = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return code;
}

time_t time(time_t *out) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return (time_t)-1;
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
