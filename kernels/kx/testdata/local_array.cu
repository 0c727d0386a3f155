// refused: Local memory used
// An array whose elements are chosen at run time, to write and to read.
__global__ void LocalArray(const int* in, int* out) {
  int v[128];
  for (int i = 0; i < 128; ++i) v[i] = 0;
  for (int i = 0; i < 128; ++i) v[in[i] & 127] += i;
  out[threadIdx.x] = v[in[threadIdx.x] & 127];
}
