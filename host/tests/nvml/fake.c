/* A driver's library as far as the probe asks it. TWO, MIG, MISMATCH, HANG, CRASH, NOISY or
   MUTE, which does not tell who holds memory. HOLDS: every process that is given one card takes so many
   GiB of it; else half of each is free. BELOW: where such processes' programs are. HOLDER: processes of this name hold 1 GiB of each,
   else the parent of whoever asks does.
   SERVES: the newest CUDA it serves, 12.8 as 12080. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef SERVES
#define SERVES 12080
#endif

typedef struct { int index, slice; } *device;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory;
static struct { int index, slice; } devices[4] = {{0, 0}, {1, 0}, {0, 1}, {0, 2}};

int nvmlInit_v2(void) {
#ifdef MISMATCH
    return 18; /* NVML_ERROR_LIB_RM_VERSION_MISMATCH */
#elif defined(HANG)
    for (;;) pause();
#elif defined(CRASH)
    *(volatile int *)0 = 1;
#elif defined(NOISY)
    puts("nvml says hello");
#endif
    return 0;
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { snprintf(out, n, "570.86.15"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = SERVES; return 0; }
int nvmlSystemGetCudaDriverVersion(int *out) { *out = SERVES; return 0; }
int nvmlDeviceGetCount_v2(unsigned *out) {
#ifdef MIG
    *out = 1;
#else
    *out = 2;
#endif
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device *out) { *out = (device)&devices[i]; return 0; }
int nvmlDeviceGetUUID(device d, char *out, unsigned n) {
    snprintf(out, n, d->slice ? "MIG-%d" : "GPU-%d", d->slice ? d->slice : d->index);
    return 0;
}
int nvmlDeviceGetName(device d, char *out, unsigned n) {
    snprintf(out, n, d->slice ? "NVIDIA H100 MIG 1g.10gb" : "NVIDIA GeForce RTX 3090");
    return 0;
}
#ifdef HOLDS
static char text[1 << 16];
static int read_of(const char *pid, const char *name) {
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/%s", pid, name);
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    for (size_t at = 0; at < length; at++) if (!text[at]) text[at] = '\n';
    text[length] = 0;
    return length > 0;
}
static unsigned long long held(int index) {
    char given[64];
    unsigned long long sum = 0;
    snprintf(given, sizeof given, "CUDA_VISIBLE_DEVICES=GPU-%d\n", index);
    DIR *all = opendir("/proc");
    for (struct dirent *one; (one = readdir(all));)
        if (read_of(one->d_name, "cmdline") && !strncmp(text, BELOW, strlen(BELOW))
            && read_of(one->d_name, "environ") && strstr(text, given))
            sum += (unsigned long long)HOLDS << 30;
    closedir(all);
    return sum;
}
#endif
int nvmlDeviceGetMemoryInfo_v2(device d, memory *out) {
    out->total = (d->slice ? 10ULL : 24ULL) << 30;
#ifdef HOLDS
    out->free = out->total - held(d->index);
#else
    out->free = out->total / 2;
#endif
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(device d, int *major, int *minor) { *major = 8; *minor = 6; return 0; }
int nvmlDeviceGetMigMode(device d, unsigned *current, unsigned *pending) {
#ifdef MIG
    *current = *pending = 1;
    return 0;
#else
    return 3; /* NVML_ERROR_NOT_SUPPORTED */
#endif
}
int nvmlDeviceGetMaxMigDeviceCount(device d, unsigned *out) { *out = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned i, device *out) {
    if (i != 0 && i != 2) return 6; /* NVML_ERROR_NOT_FOUND: slices are not numbered without gaps */
    *out = (device)&devices[i ? 3 : 2];
    return 0;
}

typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *count, process *out) {
#ifdef MUTE
    return 3; /* NVML_ERROR_NOT_SUPPORTED */
#endif
#ifdef HOLDER
    unsigned found = 0, room = *count;
    DIR *all = opendir("/proc");
    for (struct dirent *one; (one = readdir(all));) {
        char path[300], name[64] = "";
        snprintf(path, sizeof path, "/proc/%s/comm", one->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        if (fscanf(file, "%63s", name) == 1 && !strcmp(name, HOLDER) && found++ < room)
            out[found - 1] = (process){atoi(one->d_name), 1ULL << 30, -1, -1};
        fclose(file);
    }
    closedir(all);
    *count = found;
    return found > room ? 7 : 0; /* NVML_ERROR_INSUFFICIENT_SIZE */
#endif
    if (*count < 1) {
        *count = 1;
        return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
    }
    *count = 1;
    out[0] = (process){getppid(), 1ULL << 30, -1, -1};
    return 0;
}
