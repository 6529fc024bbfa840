
// --- what only HIP has; a thread without a device of its own has the first
extern "C" {
int fake_layout;        // 0: hipDeviceProp_t of ROCm 6 and 7; 1: one that nobody knows; 2: without the arch
void fake_properties(int layout) { fake_layout = layout; }
int hipGetDeviceCount(int* count) {
  int status = did(__func__);
  *count = status ? 0 : 2;
  return status;
}
int hipGetDevice(int* device) {
  if (!current) current = &contexts[0];
  *device = device_of(current);
  return broken;
}
int hipSetDevice(int device) {
  if (device < 0 || device > 1) return 101;
  current = &contexts[device];
  return did(__func__, " %d", device);
}
int hipDeviceGetPCIBusId(char* id, int, int device) {
  strcpy(id, device ? "0000:C1:00.0" : "0001:06:00.0");
  return 0;
}
int hipGetDevicePropertiesR0600(char* properties, int device) {
  memset(properties, 0, 1500);
  const char* arch = device ? "gfx1100" : "gfx942:sramecc+:xnack-";
  if (fake_layout < 2) strcpy(properties + (fake_layout ? 2000 : 1160), arch);
  return 0;
}
const char* hipGetErrorString(int status) { return status == 700 ? "an illegal memory access was encountered" : "a reason"; }
}
