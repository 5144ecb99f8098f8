/* libnvidia-ml.so.1 for a test: one answer a function, in the layout of nvml.h as nvidia-ml-py 13 reads it. */
#include <stdio.h>
#include <string.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { u32 gpu, memory; } utilization;
typedef struct { u32 version; u64 total, reserved, free, used; } memory_v2;
typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { u32 field, scope; long long at, latency; u32 type, ret; union { double d; u64 u; } value; } field_value;
typedef struct { u32 id, ret; double value; char *names[3]; } gpm_metric;
typedef struct { u32 version, count; void *one, *two; gpm_metric metrics[]; } gpm_get;
typedef struct { u32 version, supported; } gpm_support;
typedef struct { void *device; u64 type, data; u32 gi, ci; } event_data;
typedef struct { u32 pid; u64 used; u32 gi, ci; } process;

#define GPUS 8
#define RETURN(type, value) { *out = (type)(value); return 0; }
static char handles[GPUS], samples[2 * GPUS * 4], set;
static int used_samples, xid_pending = 1;

int nvmlInitWithFlags(u32 flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "stub"; }
int nvmlDeviceGetCount_v2(u32 *out) RETURN(u32, GPUS)
int nvmlDeviceGetHandleByIndex_v2(u32 index, void **out) { *out = handles + index; return 0; }
static int index_of(void *device) { return (int)((char *)device - handles); }
int nvmlDeviceGetUUID(void *d, char *out, u32 size) { snprintf(out, size, "GPU-%08x-stub", index_of(d)); return 0; }
int nvmlDeviceGetPciInfo_v3(void *d, pci_info *out) {
  memset(out, 0, sizeof *out);
  snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", 0x19 + index_of(d));
  return 0;
}
int nvmlDeviceGetArchitecture(void *d, u32 *out) RETURN(u32, 9)
int nvmlDeviceGetPowerUsage(void *d, u32 *out) RETURN(u32, 650000)
int nvmlDeviceGetTemperature(void *d, u32 sensor, u32 *out) RETURN(u32, 61)
int nvmlDeviceGetClockInfo(void *d, u32 kind, u32 *out) RETURN(u32, kind == 1 ? 1755 : 0)
int nvmlDeviceGetMemoryInfo_v2(void *d, memory_v2 *out) { out->used = 60ull << 30; return out->version ? 0 : 25; }
int nvmlDeviceGetUtilizationRates(void *d, utilization *out) { out->gpu = 97; out->memory = 40; return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(void *d, u64 *out) RETURN(u64, 0x40)
int nvmlDeviceGetCurrPcieLinkGeneration(void *d, u32 *out) RETURN(u32, 5)
int nvmlDeviceGetCurrPcieLinkWidth(void *d, u32 *out) RETURN(u32, index_of(d) == 3 ? 4 : 16)
int nvmlDeviceGetMaxPcieLinkGeneration(void *d, u32 *out) RETURN(u32, 5)
int nvmlDeviceGetMaxPcieLinkWidth(void *d, u32 *out) RETURN(u32, 16)
int nvmlDeviceGetRemappedRows(void *d, u32 *a, u32 *b, u32 *c, u32 *e) { *a = *b = *c = *e = 0; return 0; }
int nvmlDeviceGetTotalEccErrors(void *d, u32 kind, u32 counter, u64 *out) RETURN(u64, 0)
int nvmlDeviceGetNvLinkState(void *d, u32 link, u32 *out) { *out = 1; return link < 18 ? 0 : 2; }
int nvmlDeviceGetFieldValues(void *d, int count, field_value *values) {
  for (int i = 0; i < count; i++) {
    values[i].ret = values[i].field == 230 ? 0 : 3;
    values[i].type = 1;
    values[i].value.u = 0;
  }
  return 0;
}
int nvmlGpmQueryDeviceSupport(void *d, gpm_support *out) { out->supported = 1; return 0; }
int nvmlGpmSampleAlloc(void **out) { *out = samples + used_samples++ % (int)sizeof samples; return 0; }
int nvmlGpmSampleFree(void *sample) { return 0; }
int nvmlGpmSampleGet(void *d, void *sample) { return 0; }
int nvmlGpmMetricsGet(gpm_get *get) {
  if (get->version != 1 || !get->one || !get->two) return 2;
  for (u32 i = 0; i < get->count; i++) { get->metrics[i].ret = 0; get->metrics[i].value = get->metrics[i].id; }
  return 0;
}
int nvmlEventSetCreate(void **out) { *out = &set; return 0; }
int nvmlEventSetFree(void *s) { return 0; }
int nvmlDeviceGetSupportedEventTypes(void *d, u64 *out) RETURN(u64, 0x1f)
int nvmlDeviceRegisterEvents(void *d, u64 types, void *s) { return s == &set && types == 8 ? 0 : 2; }
int nvmlEventSetWait_v2(void *s, event_data *out, u32 timeout) {
  if (!xid_pending) return 10;
  xid_pending = 0;
  memset(out, 0, sizeof *out);
  out->device = handles + 5; out->type = 8; out->data = 94;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, u32 *count, process *out) {
  if (*count < 1) { *count = 1; return 7; }
  memset(out, 0, sizeof *out);
  *count = 1; out->pid = 4000 + index_of(d);
  return 0;
}
