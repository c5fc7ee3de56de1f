// A stand-in for the driver's library, for tests. It does what the file "control" beside it says, read again at every call:
//
//	count N              GPUs (1)
//	ret NAME GPU CODE    the function answers the code; GPU may be *, as for functions of no GPU
//	hang NAME GPU        it never returns
//	wait NAME GPU        it returns when the line is gone, and meanwhile there is a file "waiting" beside the control file
//	set KEY GPU VALUE    what a function tells; without a line it does not support what is asked
//	xid SERIAL GPU XID   an error, delivered once to whoever waits for events
//
// Compiled with OLD it lacks what older drivers lack, and with NO_INIT a way to begin.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvml.h"

#define GPUS 8
#define FN nvmlReturn_t

struct nvmlDevice_st {
  int index;
};
struct nvmlEventSet_st {
  long long delivered;
};
static struct nvmlDevice_st devices[GPUS];
static struct nvmlEventSet_st events;

static FILE* beside(const char* name, const char* mode) {
  Dl_info self;
  char path[4096];
  if (dladdr((void*)beside, &self) == 0) return NULL;
  snprintf(path, sizeof path, "%s", self.dli_fname);
  char* slash = strrchr(path, '/');
  if (slash == NULL) return NULL;
  snprintf(slash, path + sizeof path - slash, "/%s", name);
  return fopen(path, mode);
}

static FILE* control(void) { return beside("control", "r"); }

static int is(const char* word, int gpu) { return strcmp(word, "*") == 0 || atoi(word) == gpu; }

// gate does to a call what the control file says.
static FN gate(const char* name, int gpu) {
  char line[256], word[64], of[16];
  FN code = NVML_SUCCESS;
  FILE* f = control();
  if (f == NULL) return code;
  while (fgets(line, sizeof line, f) != NULL) {
    int given;
    if (sscanf(line, "ret %63s %15s %d", word, of, &given) == 3 && strcmp(word, name) == 0 && is(of, gpu)) code = (FN)given;
    if (sscanf(line, "hang %63s %15s", word, of) == 2 && strcmp(word, name) == 0 && is(of, gpu)) {
      fclose(f);
      for (;;) pause();
    }
    if (sscanf(line, "wait %63s %15s", word, of) == 2 && strcmp(word, name) == 0 && is(of, gpu)) {
      fclose(f);
      FILE* mark = beside("waiting", "w");
      if (mark != NULL) fclose(mark);
      usleep(10000);
      return gate(name, gpu);
    }
  }
  fclose(f);
  return code;
}

// get gives a value, or that it is not supported.
static FN get(const char* key, int gpu, long long* value) {
  char line[256], word[64], of[16];
  FN code = NVML_ERROR_NOT_SUPPORTED;
  FILE* f = control();
  if (f == NULL) return code;
  while (fgets(line, sizeof line, f) != NULL) {
    long long given;
    if (sscanf(line, "set %63s %15s %lld", word, of, &given) == 3 && strcmp(word, key) == 0 && is(of, gpu)) {
      *value = given;
      code = NVML_SUCCESS;
    }
  }
  fclose(f);
  return code;
}

#define GATE(gpu)                                \
  do {                                           \
    FN code = gate(__func__, gpu);               \
    if (code != NVML_SUCCESS) return code;       \
  } while (0)

// TELL answers one value.
#define TELL(key, to)                            \
  do {                                           \
    long long value = 0;                         \
    GATE(device.handle->index);                  \
    FN code = get(key, device.handle->index, &value); \
    if (code == NVML_SUCCESS) (to) = value;      \
    return code;                                 \
  } while (0)

static FN text(char* to, unsigned int length, const char* from) {
  if (strlen(from) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
  strcpy(to, from);
  return NVML_SUCCESS;
}

#ifndef NO_INIT
FN nvmlInit_v2(void) {
  GATE(-1);
  for (int i = 0; i < GPUS; i++) devices[i].index = i;
  return NVML_SUCCESS;
}
#endif
FN nvmlShutdown(void) { return NVML_SUCCESS; }

FN nvmlSystemGetDriverVersion(char* to, unsigned int length) {
  GATE(-1);
  return text(to, length, "580.00.fake");
}

FN nvmlSystemGetNVMLVersion(char* to, unsigned int length) {
  GATE(-1);
  return text(to, length, "13.580.00.fake");
}

FN nvmlDeviceGetCount_v2(unsigned int* count) {
  char line[256];
  GATE(-1);
  *count = 1;
  FILE* f = control();
  if (f == NULL) return NVML_SUCCESS;
  while (fgets(line, sizeof line, f) != NULL) sscanf(line, "count %u", count);
  fclose(f);
  return NVML_SUCCESS;
}

FN nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  GATE((int)index);
  if (index >= GPUS) return NVML_ERROR_INVALID_ARGUMENT;
  device->handle = &devices[index];
  return NVML_SUCCESS;
}

FN nvmlDeviceGetUUID(nvmlDevice_t device, char* to, unsigned int length) {
  char uuid[64];
  GATE(device.handle->index);
  snprintf(uuid, sizeof uuid, "GPU-fake-%d", device.handle->index);
  return text(to, length, uuid);
}

FN nvmlDeviceGetName(nvmlDevice_t device, char* to, unsigned int length) {
  GATE(device.handle->index);
  return text(to, length, "Fake GPU");
}

FN nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  GATE(device.handle->index);
  memset(pci, 0, sizeof *pci);
  pci->bus = 0x3b + device.handle->index;
  return NVML_SUCCESS;
}

FN nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int* to) {
  (void)sensor;
  TELL("temperature", *to);
}

FN nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* to) { TELL("power", *to); }
FN nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int* to) { TELL("power_limit", *to); }
FN nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* to) { TELL("utilisation", to->gpu); }

FN nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* to) {
  long long total = 0;
  FN code = get("memory_total", device.handle->index, &total);
  if (code != NVML_SUCCESS) return code;
  to->total = total;
  TELL("memory_used", to->used);
}

FN nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int* to) {
  TELL(type == NVML_CLOCK_SM ? "sm_clock" : "memory_clock", *to);
}

FN nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long* to) {
  if (counter != NVML_VOLATILE_ECC) return NVML_ERROR_INVALID_ARGUMENT;
  TELL(type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? "ecc_corrected" : "ecc_uncorrected", *to);
}

FN nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int* corrected, unsigned int* uncorrected, unsigned int* pending, unsigned int* failed) {
  long long value = 0;
  *pending = *failed = 0;
  if (get("remap_pending", device.handle->index, &value) == NVML_SUCCESS) *pending = (unsigned int)value;
  if (get("remap_failed", device.handle->index, &value) == NVML_SUCCESS) *failed = (unsigned int)value;
  *uncorrected = 0;
  TELL("rows", *corrected);
}

FN nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t* to) { TELL("retired_pending", *to); }
FN nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int* to) { TELL("replays", *to); }
FN nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int* to) { TELL("width", *to); }
FN nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int* to) { TELL("width_max", *to); }

FN nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* values) {
  GATE(device.handle->index);
  for (int i = 0; i < count; i++) {
    char key[32];
    long long value = 0;
    snprintf(key, sizeof key, "field_%u", values[i].fieldId);
    values[i].nvmlReturn = get(key, device.handle->index, &value);
    values[i].valueType = values[i].fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION ? NVML_VALUE_TYPE_UNSIGNED_INT : NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    if (values[i].valueType == NVML_VALUE_TYPE_UNSIGNED_INT) {
      memset(&values[i].value, 0xff, sizeof values[i].value);  // what lies beyond the value is not to be read
      values[i].value.uiVal = (unsigned int)value;
    } else {
      values[i].value.ullVal = value;
    }
  }
  return NVML_SUCCESS;
}

FN nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_t* infos) {
  long long pid = 0, used = 0;
  GATE(device.handle->index);
  if (get("process", device.handle->index, &pid) != NVML_SUCCESS) return NVML_ERROR_NOT_SUPPORTED;
  if (pid == 0) {
    *count = 0;
    return NVML_SUCCESS;
  }
  if (*count < 1) {
    *count = 1;
    return NVML_ERROR_INSUFFICIENT_SIZE;
  }
  get("process_memory", device.handle->index, &used);
  *count = 1;
  infos[0].pid = (unsigned int)pid;
  infos[0].usedGpuMemory = used;
  return NVML_SUCCESS;
}

#ifdef OLD
FN nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t type, unsigned int* to) {
  if (type != NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) return NVML_ERROR_INVALID_ARGUMENT;
  TELL("slowdown_at", *to);
}

FN nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long* to) { TELL("slower", *to); }
#else
FN nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long* to) { TELL("slower", *to); }
FN nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t* to) { TELL("margin", to->marginTemperature); }

FN nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t* to) {
  if (to->version != nvmlEccSramErrorStatus_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  TELL("sram", to->bThresholdExceeded);
}
#endif

FN nvmlEventSetCreate(nvmlEventSet_t* set) {
  GATE(-1);
  set->handle = &events;
  return NVML_SUCCESS;
}

FN nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
  GATE(device.handle->index);
  return types == nvmlEventTypeXidCriticalError && set.handle == &events ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

FN nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data, unsigned int timeout) {
  for (unsigned int waited = 0; waited <= timeout; waited += 20) {
    char line[256];
    GATE(-1);
    FILE* f = control();
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
      long long serial, number;
      int gpu;
      if (sscanf(line, "xid %lld %d %lld", &serial, &gpu, &number) != 3 || serial <= set.handle->delivered || gpu < 0 || gpu >= GPUS) continue;
      set.handle->delivered = serial;
      memset(data, 0, sizeof *data);
      data->device.handle = &devices[gpu];
      data->eventType = nvmlEventTypeXidCriticalError;
      data->eventData = number;
      fclose(f);
      return NVML_SUCCESS;
    }
    if (f != NULL) fclose(f);
    usleep(20000);
  }
  return NVML_ERROR_TIMEOUT;
}
