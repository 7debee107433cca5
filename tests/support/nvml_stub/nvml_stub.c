/* A stand-in for libnvidia-ml.so.1, for tests on machines without a GPU.
 *
 * What each function answers stands in a text file, named by NVML_STUB_STATE, that a test replaces
 * while the library is in use. One line an answer, in any order:
 *
 *     0/nvmlDeviceGetTemperature/0 45           GPU 0, function, arguments; then the values
 *     0/field/165/3 1                           a field of nvmlDeviceGetFieldValues, with its scope
 *     1/nvmlDeviceGetPowerUsage E15             an NVML error
 *     2/nvmlDeviceGetUtilizationRates hang      does not come back until the line has changed
 *     3/lost 1                                  every function about GPU 3 answers GPU_IS_LOST
 *     nvmlInitWithFlags E9                      a function that is about no GPU
 *     event/7 2 8 79                            event number 7: GPU, type, data
 *
 *     0.2/nvmlDeviceGetUUID MIG-...             MIG instance 2 of GPU 0
 *     0/gpm/5 63.5                              a metric of GPM, in percent; 0/gpm/5/3 of GPU instance 3
 *
 *     libcuda-mib 32                            what asking for the version of CUDA allocates, and keeps
 *     nvml-mib 12                               what opening the GPUs allocates, and keeps
 *
 * A function without a line answers NOT_SUPPORTED. With -DOLD_DRIVER newer symbols are missing.
 * Layouts are those of nvml.h, written down here anew as far as they are needed.
 *
 * build: cc -O2 -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 nvml_stub.c
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
enum { OK = 0, UNINITIALIZED = 1, BAD_ARGUMENT = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15 };
enum { VALUES_MAX = 16, LINES_MAX = 32768, GPUS_MAX = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *text;
static struct { char *key, *values; } lines[LINES_MAX];
static int line_count;
static struct timespec read_at;
static ino_t read_inode;
static u64 last_event;
static int open_count; /* nvmlInit less nvmlShutdown: as the real library, it answers nothing about GPUs while closed */

static int by_key(const void *a, const void *b) {
    return strcmp(((const char *const *)a)[0], ((const char *const *)b)[0]);
}

/* Read the file again where it has changed. */
static void refresh(void) {
    const char *path = getenv("NVML_STUB_STATE");
    struct stat about;
    if (!path || stat(path, &about)) return;
    if (text && about.st_ino == read_inode && about.st_mtim.tv_sec == read_at.tv_sec &&
        about.st_mtim.tv_nsec == read_at.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    free(text);
    text = calloc(1, about.st_size + 1);
    size_t size = fread(text, 1, about.st_size, file);
    fclose(file);
    text[size] = 0;
    read_inode = about.st_ino;
    read_at = about.st_mtim;
    line_count = 0;
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n")) && line_count < LINES_MAX) {
        char *space = strchr(line, ' ');
        if (!space) continue;
        *space = 0;
        lines[line_count].key = line;
        lines[line_count++].values = space + 1;
    }
    qsort(lines, line_count, sizeof lines[0], by_key);
}

/* Copy the values of a key; return 0 where it has no line. */
static int find(const char *key, char *values, size_t size) {
    pthread_mutex_lock(&lock);
    refresh();
    struct { const char *key, *values; } wanted = {key, NULL}, *found;
    found = bsearch(&wanted, lines, line_count, sizeof lines[0], by_key);
    if (found) snprintf(values, size, "%s", found->values);
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

static void pause_ms(int ms) {
    struct timespec span = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&span, NULL);
}

/* Return NVML's code, and the values as text. Waits for as long as the line says "hang". */
static int answer(const char *key, char *values, size_t size) {
    do {
        if (!find(key, values, size)) return NOT_SUPPORTED;
        if (values[0] == 'E') return atoi(values + 1);
        if (strcmp(values, "hang")) return OK;
        pause_ms(10);
    } while (1);
}

enum { MIG_AT = 1000, MIG_MAX = 16 }; /* handles of MIG instances: MIG_AT + 16 x GPU + number */
static int mig_of(void *device) {
    return (intptr_t)device >= MIG_AT ? (int)(((intptr_t)device - MIG_AT) % MIG_MAX) : -1;
}
static int index_of(void *device) {
    return (intptr_t)device >= MIG_AT ? (int)(((intptr_t)device - MIG_AT) / MIG_MAX) : (int)(intptr_t)device - 1;
}

static int is_lost(int gpu) {
    char key[64], values[16];
    snprintf(key, sizeof key, "%d/lost", gpu);
    return find(key, values, sizeof values) && values[0] == '1';
}

/* Answer a function about a GPU: the arguments are -1 where there are none. */
static int of_gpu(void *device, const char *function, int a, int b, int c, char *values, size_t size) {
    char key[160];
    int gpu = index_of(device), length;
    if (open_count <= 0) return UNINITIALIZED;
    if (gpu < 0 || gpu >= GPUS_MAX) return BAD_ARGUMENT;
    if (is_lost(gpu)) return LOST;
    if (mig_of(device) >= 0) length = snprintf(key, sizeof key, "%d.%d/%s", gpu, mig_of(device), function);
    else length = snprintf(key, sizeof key, "%d/%s", gpu, function);
    if (a >= 0) length += snprintf(key + length, sizeof key - length, "/%d", a);
    if (b >= 0) length += snprintf(key + length, sizeof key - length, "/%d", b);
    if (c >= 0) snprintf(key + length, sizeof key - length, "/%d", c);
    return answer(key, values, size);
}

static int numbers(void *device, const char *function, int a, int b, int c, long long *out, int count) {
    char values[512], *at = values;
    int code = of_gpu(device, function, a, b, c, values, sizeof values);
    if (code) return code;
    for (int i = 0; i < count; i++) out[i] = strtoll(at, &at, 0);
    return OK;
}

static int string(const char *key, void *device, const char *function, char *out, u32 size) {
    char values[512];
    int code = device ? of_gpu(device, function, -1, -1, -1, values, sizeof values)
                      : answer(key, values, sizeof values);
    if (!code) snprintf(out, size, "%s", values);
    return code;
}

#define U32(name) int name(void *d, u32 *out) { long long v; \
    int code = numbers(d, #name, -1, -1, -1, &v, 1); if (!code) *out = v; return code; }
#define U32_OF(name) int name(void *d, u32 a, u32 *out) { long long v; \
    int code = numbers(d, #name, a, -1, -1, &v, 1); if (!code) *out = v; return code; }
#define U64(name) int name(void *d, u64 *out) { long long v; \
    int code = numbers(d, #name, -1, -1, -1, &v, 1); if (!code) *out = v; return code; }
#define PAIR(name) int name(void *d, u32 *x, u32 *y) { long long v[2]; \
    int code = numbers(d, #name, -1, -1, -1, v, 2); if (!code) { *x = v[0]; *y = v[1]; } return code; }
#define TEXT(name) int name(void *d, char *out, u32 size) { return string("", d, #name, out, size); }
#define SYSTEM_TEXT(name) int name(char *out, u32 size) { return string(#name, NULL, #name, out, size); }

/* ---- the library and its GPUs */

/* Allocate what a line of this name says, once, and keep it. */
static void allocate(const char *key, char **memory) {
    char values[64];
    if (*memory || !find(key, values, sizeof values)) return;
    size_t size = (size_t)atoi(values) << 20;
    if ((*memory = malloc(size))) memset(*memory, 1, size);
}
int nvmlInitWithFlags(u32 flags) {
    static char *memory;
    char values[64];
    int code = answer("nvmlInitWithFlags", values, sizeof values);
    if (!code && !(flags & 2)) allocate("nvml-mib", &memory); /* 2: attach no GPU */
    if (!code) open_count++;
    return code;
}
int nvmlShutdown(void) {
    if (open_count <= 0) return UNINITIALIZED;
    open_count--;
    return OK;
}
const char *nvmlErrorString(int code) {
    static __thread char message[64];
    snprintf(message, sizeof message, "stub error %d", code);
    return message;
}
SYSTEM_TEXT(nvmlSystemGetDriverVersion)
SYSTEM_TEXT(nvmlSystemGetNVMLVersion)
/* The real library loads libcuda for this, which stays with its memory. */
static void load_cuda(void) {
    static char *memory;
    allocate("libcuda-mib", &memory);
}
int nvmlSystemGetCudaDriverVersion(int *out) {
    char values[64];
    load_cuda();
    int code = answer("nvmlSystemGetCudaDriverVersion", values, sizeof values);
    if (!code) *out = atoi(values);
    return code;
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }
int nvmlDeviceGetCount_v2(u32 *out) {
    char values[64];
    if (open_count <= 0) return UNINITIALIZED;
    int code = answer("nvmlDeviceGetCount", values, sizeof values);
    if (!code) *out = atoi(values);
    return code;
}
int nvmlDeviceGetHandleByIndex_v2(u32 index, void **device) {
    char key[64], values[64];
    if (open_count <= 0) return UNINITIALIZED;
    if (index >= GPUS_MAX) return BAD_ARGUMENT;
    if (is_lost(index)) return LOST;
    snprintf(key, sizeof key, "%u/nvmlDeviceGetHandleByIndex", index);
    int code = answer(key, values, sizeof values);
    if (!code) *device = (void *)(intptr_t)(index + 1);
    return code;
}
typedef struct {
    char legacy[16];
    u32 domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_t;
int nvmlDeviceGetPciInfo_v3(void *d, pci_t *out) {
    long long v[3];
    int code = numbers(d, "nvmlDeviceGetPciInfo", -1, -1, -1, v, 3);
    if (code) return code;
    memset(out, 0, sizeof *out);
    out->domain = v[0]; out->bus = v[1]; out->device = v[2];
    return OK;
}
TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetSerial)
TEXT(nvmlDeviceGetVbiosVersion)
TEXT(nvmlDeviceGetInforomImageVersion)
TEXT(nvmlDeviceGetBoardPartNumber)
U32(nvmlDeviceGetMinorNumber)
U32(nvmlDeviceGetPersistenceMode)
PAIR(nvmlDeviceGetMigMode)

/* ---- MIG instances */

U32(nvmlDeviceGetMaxMigDeviceCount)
U32(nvmlDeviceGetGpuInstanceId)
U32(nvmlDeviceGetComputeInstanceId)
int nvmlDeviceGetMigDeviceHandleByIndex(void *d, u32 number, void **out) {
    long long v;
    int code = numbers(d, "nvmlDeviceGetMigDeviceHandleByIndex", number, -1, -1, &v, 1);
    if (!code) *out = (void *)(intptr_t)(MIG_AT + MIG_MAX * index_of(d) + number);
    return code;
}

/* ---- GPM: a sample remembers of whom it is */

typedef struct { void *device; int instance; } sample_t;
typedef struct {
    u32 id, code;
    double value;
    const char *name, *long_name, *unit;
} metric_t;
typedef struct { u32 version, count; sample_t *first, *second; metric_t metrics[]; } metrics_t;
int nvmlGpmQueryDeviceSupport(void *d, u32 *out) {
    long long v;
    if (out[0] != 1) return 25;
    int code = numbers(d, "nvmlGpmQueryDeviceSupport", -1, -1, -1, &v, 1);
    if (!code) out[1] = (u32)v;
    return code;
}
int nvmlGpmSampleAlloc(sample_t **out) { *out = calloc(1, sizeof **out); return OK; }
int nvmlGpmSampleFree(sample_t *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(void *d, sample_t *sample) {
    *sample = (sample_t){d, -1};
    return is_lost(index_of(d)) ? LOST : OK;
}
int nvmlGpmMigSampleGet(void *d, u32 instance, sample_t *sample) {
    *sample = (sample_t){d, (int)instance};
    return is_lost(index_of(d)) ? LOST : OK;
}
int nvmlGpmMetricsGet(metrics_t *out) {
    if (out->version != 1) return 25;
    if (!out->first->device || out->first->device != out->second->device) return BAD_ARGUMENT;
    for (u32 i = 0; i < out->count; i++) {
        char values[64];
        metric_t *one = &out->metrics[i];
        one->code = of_gpu(out->second->device, "gpm", one->id, out->second->instance, -1, values, sizeof values);
        one->value = one->code ? 0 : strtod(values, NULL);
    }
    return OK;
}

/* ---- readings */

PAIR(nvmlDeviceGetEncoderUtilization)
PAIR(nvmlDeviceGetDecoderUtilization)
PAIR(nvmlDeviceGetJpgUtilization)
PAIR(nvmlDeviceGetOfaUtilization)

U32_OF(nvmlDeviceGetTemperature)
U32_OF(nvmlDeviceGetTemperatureThreshold)
U32(nvmlDeviceGetPowerUsage)
U32(nvmlDeviceGetEnforcedPowerLimit)
U32_OF(nvmlDeviceGetClockInfo)
U32_OF(nvmlDeviceGetMaxClockInfo)
U32_OF(nvmlDeviceGetApplicationsClock)
U32(nvmlDeviceGetPerformanceState)
U32(nvmlDeviceGetFanSpeed)
U32(nvmlDeviceGetCurrPcieLinkGeneration)
U32(nvmlDeviceGetMaxPcieLinkGeneration)
U32(nvmlDeviceGetCurrPcieLinkWidth)
U32(nvmlDeviceGetMaxPcieLinkWidth)
U32_OF(nvmlDeviceGetPcieThroughput)
U32_OF(nvmlDeviceGetNvLinkState)
U32_OF(nvmlDeviceGetNvLinkRemoteDeviceType)
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *d, u32 link, pci_t *out) {
    long long v[3];
    int code = numbers(d, "nvmlDeviceGetNvLinkRemotePciInfo", link, -1, -1, v, 3);
    if (code) return code;
    memset(out, 0, sizeof *out);
    out->domain = v[0]; out->bus = v[1]; out->device = v[2];
    return OK;
}
U64(nvmlDeviceGetCurrentClocksThrottleReasons)
int nvmlDeviceGetUtilizationRates(void *d, u32 *out) {
    long long v[2];
    int code = numbers(d, "nvmlDeviceGetUtilizationRates", -1, -1, -1, v, 2);
    if (!code) { out[0] = v[0]; out[1] = v[1]; }
    return code;
}
int nvmlDeviceGetMemoryInfo(void *d, u64 *out) { /* total, free, used */
    long long v[3]; /* total, used, reserved */
    int code = numbers(d, "nvmlDeviceGetMemoryInfo", -1, -1, -1, v, 3);
    if (!code) { out[0] = v[0]; out[1] = v[0] - v[1]; out[2] = v[1]; }
    return code;
}
int nvmlDeviceGetMemoryErrorCounter(void *d, u32 kind, u32 counter, u32 place, u64 *out) {
    long long v;
    int code = numbers(d, "nvmlDeviceGetMemoryErrorCounter", kind, counter, place, &v, 1);
    if (!code) *out = v;
    return code;
}
int nvmlDeviceGetRowRemapperHistogram(void *d, u32 *out) {
    long long v[5];
    int code = numbers(d, "nvmlDeviceGetRowRemapperHistogram", -1, -1, -1, v, 5);
    for (int i = 0; !code && i < 5; i++) out[i] = v[i];
    return code;
}
int nvmlDeviceGetNvLinkErrorCounter(void *d, u32 link, u32 counter, u64 *out) {
    long long v;
    int code = numbers(d, "nvmlDeviceGetNvLinkErrorCounter", link, counter, -1, &v, 1);
    if (!code) *out = v;
    return code;
}
typedef struct { u32 pid; u64 memory; u32 gpu_instance, compute_instance; } process_t;
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, u32 *count, process_t *out) {
    char values[4096], *at = values;
    int code = of_gpu(d, "nvmlDeviceGetComputeRunningProcesses", -1, -1, -1, values, sizeof values);
    u32 found = 0;
    if (code) return code;
    while (1) { /* pairs of pid and memory */
        char *end;
        u32 pid = strtoul(at, &end, 0);
        if (end == at) break;
        u64 memory = strtoull(end, &at, 0);
        if (out && found < *count) out[found] = (process_t){pid, memory, ~0u, ~0u};
        found++;
    }
    code = found > (out ? *count : 0) ? TOO_SMALL : OK;
    *count = found;
    return code;
}
typedef struct {
    u32 id, scope;
    int64_t timestamp, latency;
    u32 type, code;
    u64 value;
} field_t;
int nvmlDeviceGetFieldValues(void *d, int count, field_t *out) {
    char whole[64];
    int code = of_gpu(d, "nvmlDeviceGetFieldValues", -1, -1, -1, whole, sizeof whole);
    if (code && code != NOT_SUPPORTED) return code; /* without a line it works */
    for (int i = 0; i < count; i++) {
        long long v;
        out[i].code = numbers(d, "field", out[i].id, out[i].scope, -1, &v, 1);
        out[i].type = 3; /* unsigned long long */
        out[i].value = out[i].code ? 0 : v;
    }
    return OK;
}

/* ---- what newer drivers have. A versioned structure of another version is refused. */

#ifndef OLD_DRIVER
U64(nvmlDeviceGetCurrentClocksEventReasons)
int nvmlDeviceGetMemoryInfo_v2(void *d, u32 *version, ...) {
    struct { u32 version; u64 total, reserved, free, used; } *out = (void *)version;
    long long v[3];
    if (*version != 0x02000028) return 25;
    int code = numbers(d, "nvmlDeviceGetMemoryInfo", -1, -1, -1, v, 3);
    if (!code) { out->total = v[0]; out->used = v[1]; out->reserved = v[2]; out->free = v[0] - v[1] - v[2]; }
    return code;
}
int nvmlDeviceGetMarginTemperature(void *d, u32 *out) {
    long long v;
    if (out[0] != 0x01000008) return 25;
    int code = numbers(d, "nvmlDeviceGetMarginTemperature", -1, -1, -1, &v, 1);
    if (!code) out[1] = (u32)v;
    return code;
}
int nvmlDeviceGetRepairStatus(void *d, u32 *out) {
    long long v[2];
    if (out[0] != 0x0100000C) return 25;
    int code = numbers(d, "nvmlDeviceGetRepairStatus", -1, -1, -1, v, 2);
    if (!code) { out[1] = v[0]; out[2] = v[1]; }
    return code;
}
int nvmlDeviceGetSramEccErrorStatus(void *d, u32 *version) {
    struct { u32 version; u64 counts[11]; u32 is_exceeded; } *out = (void *)version;
    long long v;
    if (*version != 0x01000068) return 25;
    int code = numbers(d, "nvmlDeviceGetSramEccErrorStatus", -1, -1, -1, &v, 1);
    if (!code) out->is_exceeded = (u32)v;
    return code;
}
int nvmlDeviceGetUnrepairableMemoryFlag_v1(void *d, u32 *out) {
    long long v;
    if (out[0] != 0x01000008) return 25;
    int code = numbers(d, "nvmlDeviceGetUnrepairableMemoryFlag_v1", -1, -1, -1, &v, 1);
    if (!code) out[1] = (u32)v;
    return code;
}
int nvmlDeviceGetPlatformInfo(void *d, u32 *version) {
    struct { u32 version; unsigned char guid[16]; char chassis[16]; unsigned char slot, tray, host, peer, module; } *out =
        (void *)version;
    char values[512]; /* serial of the chassis, slot, tray, host, module */
    u32 slot, tray, host, module;
    if (*version >> 24 != 2) return 25;
    int code = of_gpu(d, "nvmlDeviceGetPlatformInfo", -1, -1, -1, values, sizeof values);
    if (code) return code;
    memset(out->guid, 0, sizeof out->guid);
    memset(out->chassis, 0, sizeof out->chassis);
    if (sscanf(values, "%15s %u %u %u %u", out->chassis, &slot, &tray, &host, &module) != 5) return 999;
    out->slot = slot; out->tray = tray; out->host = host; out->peer = 0; out->module = module;
    return 0;
}
int nvmlDeviceGetGpuFabricInfoV(void *d, u32 *version) {
    struct { u32 version; unsigned char cluster[16]; u32 status, clique; unsigned char state[4]; u32 mask; } *out =
        (void *)version;
    long long v[4]; /* state, status, clique, health mask; behind them the cluster in hexadecimal, zeros where it lacks */
    char values[512], *at = values;
    if (*version >> 24 != 2 && *version >> 24 != 3) return 25;
    int code = of_gpu(d, "nvmlDeviceGetGpuFabricInfoV", *version >> 24, -1, -1, values, sizeof values);
    if (code) return code;
    for (int i = 0; i < 4; i++) v[i] = strtoll(at, &at, 0);
    memset(out->cluster, 0, sizeof out->cluster);
    while (*at == ' ') at++;
    for (int i = 0; i < 16; i++, at += 2) { /* a u32 for sscanf, and no further than the text goes */
        u32 byte;
        if (!at[0] || !at[1] || sscanf(at, "%2x", &byte) != 1) break;
        out->cluster[i] = (unsigned char)byte;
    }
    out->state[0] = v[0]; out->status = v[1]; out->clique = v[2]; out->mask = v[3];
    return OK;
}
#endif

/* ---- events */

int nvmlEventSetCreate(void **set) {
    char values[64];
    int code = answer("nvmlEventSetCreate", values, sizeof values);
    if (code) return code;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < line_count; i++) /* what was there before is of no interest */
        if (!strncmp(lines[i].key, "event/", 6)) {
            u64 number = strtoull(lines[i].key + 6, NULL, 10);
            if (number > last_event) last_event = number;
        }
    pthread_mutex_unlock(&lock);
    *set = &last_event;
    return OK;
}
int nvmlEventSetFree(void *set) { (void)set; return OK; }
U64(nvmlDeviceGetSupportedEventTypes)
int nvmlDeviceRegisterEvents(void *d, u64 types, void *set) {
    (void)types; (void)set;
    return is_lost(index_of(d)) ? LOST : OK;
}
typedef struct { void *device; u64 type, data; u32 gpu_instance, compute_instance; } event_t;
/* Return a descriptor that is readable once the folder of the state file has changed; -1: there is none. */
static int changes_of_state(void) {
    static int watched = -2;
    const char *path = getenv("NVML_STUB_STATE");
    if (watched != -2) return watched;
    watched = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (watched >= 0 && path) {
        char folder[4096];
        snprintf(folder, sizeof folder, "%s", path);
        char *end = strrchr(folder, '/');
        if (end) *end = 0;
        inotify_add_watch(watched, end ? folder : ".", IN_MOVED_TO | IN_CLOSE_WRITE);
    }
    return watched;
}

static u64 now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int nvmlEventSetWait_v2(void *set, event_t *out, u32 timeout_ms) {
    (void)set;
    struct pollfd changes = {changes_of_state(), POLLIN, 0};
    u64 until_ms = now_ms() + timeout_ms;
    for (;;) { /* as a driver does, it sleeps until it is woken */
        char news[4096];
        while (changes.fd >= 0 && read(changes.fd, news, sizeof news) > 0) {}
        char key[64], values[128], *at = values;
        snprintf(key, sizeof key, "event/%llu", last_event + 1);
        if (find(key, values, sizeof values)) {
            last_event++;
            long gpu = strtol(at, &at, 0);
            out->device = (void *)(intptr_t)(gpu + 1);
            out->type = strtoull(at, &at, 0);
            out->data = strtoull(at, &at, 0);
            out->gpu_instance = out->compute_instance = ~0u;
            return OK;
        }
        u64 at_ms = now_ms();
        if (at_ms >= until_ms) return TIMEOUT;
        if (changes.fd < 0)
            pause_ms(100);
        else
            poll(&changes, 1, (int)(until_ms - at_ms));
    }
}
