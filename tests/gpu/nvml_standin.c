/*
 * A stand-in libnvidia-ml.so.1 for the tests: enough of NVML for the real nvidia-ml-py to talk to, without a GPU.
 *
 * The file named by SRE_NVML_STANDIN is read anew at each call: lines "KEY VALUE". Keys: count; FUNCTION.error (an
 * nvmlReturn_t for every GPU); FUNCTION.hang (the call never returns, and the control file gets a neighbour with the
 * ending .hung); I.FIELD for GPU I with FIELD one of total, free,
 * reserved (MiB), temperature, utilization, milliwatts, process_pid, process_mib, lost; I.FUNCTION.error for one GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define INSUFFICIENT_SIZE 7
#define GPU_IS_LOST 15
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
    snprintf(uuid, length, "GPU-standin-%d", *(int *)device);
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
