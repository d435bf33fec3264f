/* Stand-in for libnvidia-ml.so.1 with the symbols of NVML that are used, and no others.
 *
 * Its state is the text file HPCLAUNCH_STAND_IN_NVML, which is read again at every call, so that a
 * GPU can break during a test. Error codes, structures and results follow nvml.h. The lines of the
 * file (written by nvml.py; those of a GPU follow its line `gpu`):
 *
 *   driver V · init CODE · hang · xid GPU NUMBER · fails FUNCTION CODE
 *   gpu UUID · name N · bus B · mode N · capability N N · cpus N... · node N · memory USED TOTAL
 *   RESERVED · process PID BYTES INSTANCE MPS · ecc N · retired N · rows PENDING FAILED · throttle N ·
 *   temperature N · link UP REPLAYS RECOVERIES CODE · recovery N · mig ON · instance UUID GI CI ·
 *   error CODE · fails FUNCTION CODE · hang
 *
 * `fails` is for one function, as `error` is for all of a GPU; it may lack the suffix of a version.
 */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
    NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10
};
enum { GPUS = 16, INSTANCES = 8, LINKS = 36, PROCESSES = 64, EVENTS = 256, CPUS = 1024, FAILS = 8 };
enum { XID_EVENT = 8, RECOVERY_FIELD = 230, VALUE_UINT = 1 };

typedef struct { char uuid[96]; unsigned gi, ci; } Instance;
typedef struct { unsigned n; struct { char function[64]; int code; } of[FAILS]; } Fails;
typedef struct { unsigned pid; unsigned long long bytes; int instance, mps; } Process;
typedef struct {
    char uuid[96], name[96], bus[32];
    int mode, major, minor, node, error, hang, mig;
    unsigned cpus[CPUS], n_cpus;
    unsigned long long used, total, reserved;
    long long ecc;                      /* volatile and uncorrected; -1: without ECC */
    int retired;                        /* pending; -1: not supported */
    int rows_pending, rows_failed;      /* -1: not supported */
    unsigned long long throttle;
    unsigned temperature;
    struct { int up, error; unsigned long long replays, recoveries; } links[LINKS];
    unsigned n_links, n_instances, n_processes;
    int recovery;                       /* -1: not reported by this driver */
    Fails fails;
    Instance instances[INSTANCES];
    Process processes[PROCESSES];
} Gpu;
typedef struct {
    char driver[80];
    int init, hang;
    unsigned n_gpus, n_xids;
    struct { unsigned gpu, number; } xids[EVENTS];
    Fails fails;
    Gpu gpus[GPUS];
} State;

typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } ProcessInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} PciInfo;
typedef struct {
    void *device;
    unsigned long long type, data;
    unsigned gi, ci;
} EventData;
typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    unsigned type, status;
    union { double d; unsigned ui; unsigned long long ull; } value;
} FieldValue;

static int opened, device = -1;

static int failing(const Fails *fails, const char *function)
{
    for (unsigned i = 0; i < fails->n; i++)
        if (!strncmp(function, fails->of[i].function, strlen(fails->of[i].function)))
            return fails->of[i].code;
    return OK;
}

static int read_state(State *s)
{
    const char *path = getenv("HPCLAUNCH_STAND_IN_NVML");
    FILE *f = path ? fopen(path, "r") : NULL;
    char *line = NULL;
    size_t size = 0;
    Gpu *g = NULL;
    memset(s, 0, sizeof *s);
    if (!f)
        return DRIVER_NOT_LOADED;
    while (getline(&line, &size, f) > 0) {
        char key[32] = "", *rest = line;
        int n = 0;
        line[strcspn(line, "\n")] = 0;
        sscanf(line, "%31s %n", key, &n);
        rest = line + n;
        if (!strcmp(key, "gpu") && s->n_gpus < GPUS) {
            g = &s->gpus[s->n_gpus++];
            g->retired = g->rows_pending = g->recovery = g->node = -1;
            g->ecc = -1;
            snprintf(g->uuid, sizeof g->uuid, "%s", rest);
        } else if (!strcmp(key, "driver")) {
            snprintf(s->driver, sizeof s->driver, "%s", rest);
        } else if (!strcmp(key, "init")) {
            s->init = atoi(rest);
        } else if (!strcmp(key, "xid") && s->n_xids < EVENTS) {
            sscanf(rest, "%u %u", &s->xids[s->n_xids].gpu, &s->xids[s->n_xids].number);
            s->n_xids++;
        } else if (!strcmp(key, "fails")) {
            Fails *fails = g ? &g->fails : &s->fails;
            if (fails->n < FAILS) {
                sscanf(rest, "%63s %d", fails->of[fails->n].function, &fails->of[fails->n].code);
                fails->n++;
            }
        } else if (!strcmp(key, "hang")) {
            *(g ? &g->hang : &s->hang) = 1;
        } else if (!g) {
            continue;
        } else if (!strcmp(key, "name")) {
            snprintf(g->name, sizeof g->name, "%s", rest);
        } else if (!strcmp(key, "bus")) {
            snprintf(g->bus, sizeof g->bus, "%s", rest);
        } else if (!strcmp(key, "mode")) {
            g->mode = atoi(rest);
        } else if (!strcmp(key, "capability")) {
            sscanf(rest, "%d %d", &g->major, &g->minor);
        } else if (!strcmp(key, "cpus")) {
            for (char *t = strtok(rest, " "); t && g->n_cpus < CPUS; t = strtok(NULL, " "))
                g->cpus[g->n_cpus++] = (unsigned)atoi(t);
        } else if (!strcmp(key, "node")) {
            g->node = atoi(rest);
        } else if (!strcmp(key, "memory")) {
            sscanf(rest, "%llu %llu %llu", &g->used, &g->total, &g->reserved);
        } else if (!strcmp(key, "process") && g->n_processes < PROCESSES) {
            Process *p = &g->processes[g->n_processes++];
            sscanf(rest, "%u %llu %d %d", &p->pid, &p->bytes, &p->instance, &p->mps);
        } else if (!strcmp(key, "ecc")) {
            g->ecc = atoll(rest);
        } else if (!strcmp(key, "retired")) {
            g->retired = atoi(rest);
        } else if (!strcmp(key, "rows")) {
            sscanf(rest, "%d %d", &g->rows_pending, &g->rows_failed);
        } else if (!strcmp(key, "throttle")) {
            g->throttle = strtoull(rest, NULL, 0);
        } else if (!strcmp(key, "temperature")) {
            g->temperature = (unsigned)atoi(rest);
        } else if (!strcmp(key, "link") && g->n_links < LINKS) {
            unsigned i = g->n_links++;
            sscanf(rest, "%d %llu %llu %d", &g->links[i].up, &g->links[i].replays,
                   &g->links[i].recoveries, &g->links[i].error);
        } else if (!strcmp(key, "recovery")) {
            g->recovery = atoi(rest);
        } else if (!strcmp(key, "mig")) {
            g->mig = atoi(rest);
        } else if (!strcmp(key, "instance") && g->n_instances < INSTANCES) {
            Instance *i = &g->instances[g->n_instances++];
            sscanf(rest, "%95s %u %u", i->uuid, &i->gi, &i->ci);
        } else if (!strcmp(key, "error")) {
            g->error = atoi(rest);
        }
    }
    free(line);
    fclose(f);
    return OK;
}

/* A handle is (GPU + 1) * 256 + (instance + 1), or + 0 for the GPU itself. */
static void *handle_of(unsigned gpu, int instance)
{
    return (void *)(uintptr_t)((gpu + 1) * 256 + (unsigned)(instance + 1));
}

typedef struct { State state; Gpu *gpu; unsigned index; int instance; } Call;

static void hang(void)
{
    for (;;)
        pause();
}

/* The beginning of every call for a device: its GPU may be hidden, lost, or never answer. */
static int enter(Call *c, void *handle, const char *function)
{
    uintptr_t number = (uintptr_t)handle;
    int status = opened ? read_state(&c->state) : UNINITIALIZED;
    if (status)
        return status;
    c->index = (unsigned)(number / 256) - 1;
    c->instance = (int)(number % 256) - 1;
    if (c->index >= c->state.n_gpus)
        return INVALID_ARGUMENT;
    c->gpu = &c->state.gpus[c->index];
    if (c->gpu->hang)
        hang();
    return c->gpu->error ? c->gpu->error : failing(&c->gpu->fails, function);
}

#define ENTER(handle)                                                                              \
    Call *c = calloc(1, sizeof *c);                                                                \
    int status = enter(c, handle, __func__);                                                       \
    Gpu *g = c->gpu;                                                                               \
    if (status)                                                                                    \
        return free(c), status
#define LEAVE(result) return status = (result), free(c), status

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    State *s = malloc(sizeof *s);
    int status = read_state(s);
    if (!status && s->hang)
        hang();
    status = status ? status : s->init;
    free(s);
    if (!status && !opened++) /* the real one opens its devices, this one its state file */
        device = open(getenv("HPCLAUNCH_STAND_IN_NVML"), O_RDONLY | O_CLOEXEC);
    return status;
}

int nvmlShutdown(void)
{
    if (!opened)
        return UNINITIALIZED;
    if (!--opened)
        close(device);
    return OK;
}

const char *nvmlErrorString(int code)
{
    (void)code;
    return "Stand-in";
}

static int text(char *to, unsigned size, const char *from)
{
    if (strlen(from) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}

int nvmlSystemGetDriverVersion(char *to, unsigned size)
{
    State *s = malloc(sizeof *s);
    int status = opened ? read_state(s) : UNINITIALIZED;
    status = status ? status : failing(&s->fails, __func__);
    status = status ? status : text(to, size, s->driver);
    return free(s), status;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    State *s = malloc(sizeof *s);
    int status = opened ? read_state(s) : UNINITIALIZED;
    *count = status ? 0 : s->n_gpus;
    return free(s), status;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    *handle = handle_of(index, -1);
    ENTER(*handle);
    (void)g;
    LEAVE(OK);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    State *s = malloc(sizeof *s);
    int status = opened ? read_state(s) : UNINITIALIZED, found = status ? status : NOT_FOUND;
    for (unsigned i = 0; !status && i < s->n_gpus; i++) {
        Gpu *g = &s->gpus[i];
        int instance = -1, here = !strcmp(g->uuid, uuid);
        for (unsigned k = 0; k < g->n_instances; k++)
            if (!strcmp(g->instances[k].uuid, uuid))
                instance = (int)k, here = 1;
        if (!here)
            continue;
        if (g->hang)
            hang();
        *handle = handle_of(i, instance);
        found = g->error;
    }
    return free(s), found;
}

int nvmlDeviceGetUUID(void *handle, char *to, unsigned size)
{
    ENTER(handle);
    LEAVE(text(to, size, c->instance < 0 ? g->uuid : g->instances[c->instance].uuid));
}

int nvmlDeviceGetName(void *handle, char *to, unsigned size)
{
    ENTER(handle);
    LEAVE(text(to, size, g->name));
}

int nvmlDeviceGetPciInfo_v3(void *handle, PciInfo *info)
{
    ENTER(handle);
    memset(info, 0, sizeof *info);
    LEAVE(text(info->bus_id, sizeof info->bus_id, g->bus));
}

int nvmlDeviceGetComputeMode(void *handle, int *mode)
{
    ENTER(handle);
    *mode = g->mode;
    LEAVE(OK);
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    ENTER(handle);
    *major = g->major;
    *minor = g->minor;
    LEAVE(OK);
}

int nvmlDeviceGetCpuAffinityWithinScope(void *handle, unsigned size, unsigned long *set, unsigned scope)
{
    (void)scope;
    ENTER(handle);
    memset(set, 0, size * sizeof *set);
    for (unsigned i = 0; i < g->n_cpus; i++)
        if (g->cpus[i] / 64 < size)
            set[g->cpus[i] / 64] |= 1UL << g->cpus[i] % 64;
    LEAVE(g->n_cpus ? OK : NOT_SUPPORTED);
}

int nvmlDeviceGetMemoryAffinity(void *handle, unsigned size, unsigned long *set, unsigned scope)
{
    (void)scope;
    ENTER(handle);
    memset(set, 0, size * sizeof *set);
    if (g->node >= 0)
        set[g->node / 64] |= 1UL << g->node % 64;
    LEAVE(g->node < 0 ? NOT_SUPPORTED : OK);
}

/* Before version 2, memory that the driver reserves counts as used. */
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory)
{
    ENTER(handle);
    memory->total = g->total;
    memory->used = g->used + g->reserved;
    memory->free = g->total - memory->used;
    LEAVE(OK);
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *memory)
{
    ENTER(handle);
    memory->total = g->total;
    memory->used = g->used;
    memory->reserved = g->reserved;
    memory->free = g->total - g->used - g->reserved;
    LEAVE(OK);
}

/* List MPS clients if mps is set, else all others. */
static int processes(const Call *c, unsigned *count, ProcessInfo *infos, int mps)
{
    const Gpu *g = c->gpu;
    unsigned n = 0, room = *count;
    for (unsigned i = 0; i < g->n_processes; i++) {
        const Process *p = &g->processes[i];
        int mig = p->instance >= 0;
        if (p->mps != mps || (c->instance >= 0 && p->instance != c->instance))
            continue;
        if (n < room)
            infos[n] = (ProcessInfo){p->pid, p->bytes, mig ? g->instances[p->instance].gi : ~0u,
                                     mig ? g->instances[p->instance].ci : ~0u};
        n++;
    }
    *count = n;
    return n > room ? INSUFFICIENT_SIZE : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *infos)
{
    ENTER(handle);
    LEAVE(processes(c, count, infos, 0));
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *infos)
{
    ENTER(handle);
    LEAVE(processes(c, count, infos, 1));
}

int nvmlDeviceGetTotalEccErrors(void *handle, unsigned error, unsigned counter,
                                unsigned long long *count)
{
    ENTER(handle);
    *count = error == 1 && counter == 0 ? (unsigned long long)g->ecc : 0;
    LEAVE(g->ecc < 0 || c->instance >= 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetRetiredPagesPendingStatus(void *handle, unsigned *pending)
{
    ENTER(handle);
    *pending = g->retired > 0;
    LEAVE(g->retired < 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed)
{
    ENTER(handle);
    *corrected = *uncorrected = 0;
    *pending = g->rows_pending > 0;
    *failed = g->rows_failed > 0;
    LEAVE(g->rows_pending < 0 || g->n_instances ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons)
{
    ENTER(handle);
    *reasons = g->throttle;
    LEAVE(c->instance >= 0 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *temperature)
{
    ENTER(handle);
    *temperature = g->temperature;
    LEAVE(sensor ? INVALID_ARGUMENT : OK);
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active)
{
    ENTER(handle);
    if (!g->n_links)
        LEAVE(NOT_SUPPORTED);
    if (link >= g->n_links)
        LEAVE(INVALID_ARGUMENT);
    *active = g->links[link].up > 0;
    LEAVE(g->links[link].error);
}

int nvmlDeviceGetNvLinkErrorCounter(void *handle, unsigned link, unsigned counter,
                                    unsigned long long *value)
{
    ENTER(handle);
    if (link >= g->n_links)
        LEAVE(g->n_links ? INVALID_ARGUMENT : NOT_SUPPORTED);
    *value = counter == 0 ? g->links[link].replays : counter == 1 ? g->links[link].recoveries : 0;
    LEAVE(g->links[link].error);
}

int nvmlDeviceGetFieldValues(void *handle, int count, FieldValue *values)
{
    ENTER(handle);
    for (int i = 0; i < count; i++) {
        int known = values[i].field == RECOVERY_FIELD && g->recovery >= 0;
        values[i].status = known ? OK : NOT_SUPPORTED;
        values[i].type = VALUE_UINT;
        values[i].value.ull = 0;
        values[i].value.ui = known ? (unsigned)g->recovery : 0;
    }
    LEAVE(OK);
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending)
{
    ENTER(handle);
    *current = *pending = (unsigned)g->mig;
    LEAVE(g->major < 8 ? NOT_SUPPORTED : OK);
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count)
{
    ENTER(handle);
    *count = g->mig ? INSTANCES - 1 : 0;
    LEAVE(OK);
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **instance)
{
    ENTER(handle);
    *instance = handle_of(c->index, (int)index);
    LEAVE(index < g->n_instances ? OK : NOT_FOUND);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *instance, void **handle)
{
    ENTER(instance);
    (void)g;
    *handle = handle_of(c->index, -1);
    LEAVE(c->instance < 0 ? INVALID_ARGUMENT : OK);
}

int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *id)
{
    ENTER(handle);
    *id = c->instance < 0 ? 0 : g->instances[c->instance].gi;
    LEAVE(c->instance < 0 ? INVALID_ARGUMENT : OK);
}

int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *id)
{
    ENTER(handle);
    *id = c->instance < 0 ? 0 : g->instances[c->instance].ci;
    LEAVE(c->instance < 0 ? INVALID_ARGUMENT : OK);
}

/* Events: a set delivers the events of its GPUs after its creation. */

typedef struct { unsigned next; unsigned gpus; } EventSet;

int nvmlEventSetCreate(void **set)
{
    State *s = malloc(sizeof *s);
    int status = opened ? read_state(s) : UNINITIALIZED;
    EventSet *e = calloc(1, sizeof *e);
    e->next = s->n_xids;
    *set = e;
    return free(s), status;
}

int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set)
{
    ENTER(handle);
    (void)g;
    if (!(types & XID_EVENT) || c->instance >= 0)
        LEAVE(NOT_SUPPORTED);
    ((EventSet *)set)->gpus |= 1u << c->index;
    LEAVE(OK);
}

int nvmlEventSetWait_v2(void *set, EventData *data, unsigned timeout_ms)
{
    EventSet *e = set;
    State *s = malloc(sizeof *s);
    memset(data, 0, sizeof *data);
    for (unsigned waited = 0;; waited += 5) {
        int status = opened ? read_state(s) : UNINITIALIZED;
        if (status)
            return free(s), status;
        while (e->next < s->n_xids) {
            unsigned gpu = s->xids[e->next].gpu, number = s->xids[e->next].number;
            e->next++;
            if (gpu < GPUS && e->gpus >> gpu & 1) {
                *data = (EventData){handle_of(gpu, -1), XID_EVENT, number, ~0u, ~0u};
                return free(s), OK;
            }
        }
        if (waited >= timeout_ms)
            return free(s), TIMEOUT;
        usleep(5000);
    }
}
