/*
 * A stand-in libnvidia-ml.so.1 for the tests: enough of NVML for the real nvidia-ml-py to talk to, without a GPU.
 *
 * The file named by SRE_NVML_STANDIN is read anew at each call: lines "KEY VALUE". Keys: count; FUNCTION.error (an
 * nvmlReturn_t for every GPU); FUNCTION.hang (the call never returns, and the control file gets a neighbour with the
 * ending .hung); I.FIELD for GPU I with FIELD one of total, free,
 * reserved (MiB), uuid (number at its end; without it I), temperature, utilization, milliwatts, process_pid, process_mib, lost, throttle and throttle_supported
 * (bits), event_types (bits), field_N (NVML field value N; not supported without it) with field_N.type (an
 * nvmlValueType_t; unsigned long long without it), xid and xid_count (so many events of that XID since the library was
 * loaded; those before the GPU is registered are not delivered); I.FUNCTION.error for one GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define GPU_IS_LOST 15
#define XID_EVENT 8
#define ALL_LINKS 0xFFFFFFFFu
#define MAX_GPUS 16
#define MIB (1024ULL * 1024ULL)

static int indices[MAX_GPUS]; /* a device handle is the address of one of these */

static long long number(const char *key, long long otherwise) {
    const char *path = getenv("SRE_NVML_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[128];
    long long value, found = otherwise;
    if (!file) return otherwise;
    while (fscanf(file, "%127s %lld", name, &value) == 2)
        if (!strcmp(name, key)) found = value;
    fclose(file);
    return found;
}

static long long of_gpu(int index, const char *field, long long otherwise) {
    char key[160];
    snprintf(key, sizeof key, "%d.%s", index, field);
    return number(key, otherwise);
}

static void hang(void) {
    char mark[4096];
    FILE *file;
    snprintf(mark, sizeof mark, "%s.hung", getenv("SRE_NVML_STANDIN"));
    file = fopen(mark, "w");
    if (file) fclose(file);
    for (;;) pause();
}

/* What the call is to return; does not return at all when it is to hang. */
static int verdict(const char *function, void *device) {
    char key[160];
    long long error;
    snprintf(key, sizeof key, "%s.hang", function);
    if (number(key, 0)) hang();
    snprintf(key, sizeof key, "%s.error", function);
    error = number(key, SUCCESS);
    if (error == SUCCESS && device) {
        int index = *(int *)device;
        if (of_gpu(index, "lost", 0)) return GPU_IS_LOST;
        error = of_gpu(index, key, SUCCESS);
    }
    return (int)error;
}

#define ANSWER(device) do { int v = verdict(__func__, device); if (v != SUCCESS) return v; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; ANSWER(NULL); return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int result) { (void)result; return "stand-in error"; }

int nvmlDeviceGetCount_v2(unsigned *count) { ANSWER(NULL); *count = (unsigned)number("count", 1); return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= MAX_GPUS || index >= (unsigned)number("count", 1)) return INVALID_ARGUMENT;
    indices[index] = (int)index;
    ANSWER(&indices[index]);
    *device = &indices[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    ANSWER(device);
    snprintf(uuid, length, "GPU-standin-%d", (int)of_gpu(*(int *)device, "uuid", *(int *)device));
    return SUCCESS;
}

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    ANSWER(device);
    memory->total = (unsigned long long)of_gpu(*(int *)device, "total", 81920) * MIB;
    memory->free = (unsigned long long)of_gpu(*(int *)device, "free", 40960) * MIB;
    memory->used = memory->total - memory->free;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    ANSWER(device);
    memory->total = (unsigned long long)of_gpu(*(int *)device, "total", 81920) * MIB;
    memory->free = (unsigned long long)of_gpu(*(int *)device, "free", 40960) * MIB;
    memory->reserved = (unsigned long long)of_gpu(*(int *)device, "reserved", 600) * MIB;
    memory->used = memory->total - memory->free - memory->reserved;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius) {
    if (sensor != 0) return INVALID_ARGUMENT;
    ANSWER(device);
    *celsius = (unsigned)of_gpu(*(int *)device, "temperature", 60);
    return SUCCESS;
}

struct utilization { unsigned gpu, memory; };

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *rates) {
    ANSWER(device);
    rates->gpu = (unsigned)of_gpu(*(int *)device, "utilization", 50);
    rates->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    ANSWER(device);
    *milliwatts = (unsigned)of_gpu(*(int *)device, "milliwatts", 250000);
    return SUCCESS;
}

struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes) {
    long long pid, mib;
    ANSWER(device);
    pid = of_gpu(*(int *)device, "process_pid", 0);
    mib = of_gpu(*(int *)device, "process_mib", -1);
    if (!pid) { *count = 0; return SUCCESS; }
    if (*count < 1 || !processes) { *count = 1; return INSUFFICIENT_SIZE; }
    *count = 1;
    processes[0].pid = (unsigned)pid;
    processes[0].used = mib < 0 ? ~0ULL : (unsigned long long)mib * MIB; /* all ones: not accounted */
    return SUCCESS;
}

union value { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; int si; unsigned short us; };
struct field_value {
    unsigned field, scope;
    long long timestamp, latency;
    int type, result;
    union value value;
};

/* NVLink's fields (138, 139) are only answered for the sum over all links. */
static void answer_field(int index, struct field_value *asked) {
    char key[64];
    long long value;
    snprintf(key, sizeof key, "field_%u", asked->field);
    value = of_gpu(index, key, -1);
    if (value < 0 || ((asked->field == 138 || asked->field == 139) && asked->scope != ALL_LINKS)) {
        asked->result = NOT_SUPPORTED;
        return;
    }
    strcat(key, ".type");
    asked->result = SUCCESS;
    asked->type = (int)of_gpu(index, key, 3);
    if (asked->type == 0) asked->value.d = (double)value;
    else if (asked->type == 1) asked->value.ui = (unsigned)value;
    else asked->value.ull = (unsigned long long)value;
}

int nvmlDeviceGetFieldValues(void *device, int count, struct field_value *values) {
    ANSWER(device);
    for (int i = 0; i < count; i++) answer_field(*(int *)device, &values[i]);
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    ANSWER(device);
    *reasons = (unsigned long long)of_gpu(*(int *)device, "throttle", 0);
    return SUCCESS;
}

int nvmlDeviceGetSupportedClocksThrottleReasons(void *device, unsigned long long *reasons) {
    ANSWER(device);
    *reasons = (unsigned long long)of_gpu(*(int *)device, "throttle_supported", 0x1ff);
    return SUCCESS;
}

static int event_set;
static long long delivered[MAX_GPUS]; /* -1: not registered */

int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types) {
    ANSWER(device);
    *types = (unsigned long long)of_gpu(*(int *)device, "event_types", XID_EVENT);
    return SUCCESS;
}

int nvmlEventSetCreate(void **set) {
    ANSWER(NULL);
    for (int i = 0; i < MAX_GPUS; i++) delivered[i] = -1;
    *set = &event_set;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    (void)set;
    ANSWER(device);
    if (types != XID_EVENT) return INVALID_ARGUMENT;
    delivered[*(int *)device] = of_gpu(*(int *)device, "xid_count", 0);
    return SUCCESS;
}

struct event { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned milliseconds) {
    (void)set;
    ANSWER(NULL);
    if (milliseconds) return INVALID_ARGUMENT; /* a reader that waits here holds up everything else */
    for (int i = 0; i < MAX_GPUS; i++) {
        if (delivered[i] < 0 || delivered[i] >= of_gpu(i, "xid_count", 0)) continue;
        delivered[i]++;
        memset(event, 0, sizeof *event);
        event->device = &indices[i];
        event->type = XID_EVENT;
        event->data = (unsigned long long)of_gpu(i, "xid", 0);
        return SUCCESS;
    }
    return TIMEOUT;
}
