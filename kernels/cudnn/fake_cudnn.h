// FakeCudnn: the backend's calls with an interpreter of operation graphs behind them: every operation is
// carried out, one after another, on float arrays. So a graph that says something else than it should gives
// other numbers. It counts what was not destroyed.
#ifndef KERNELS_CUDNN_FAKE_CUDNN_H_
#define KERNELS_CUDNN_FAKE_CUDNN_H_

#include <cstdint>
#include <map>
#include <vector>

#include "kernels/cudnn/cudnn_api.h"

namespace strata {

class FakeCudnn : public CudnnApi {
 public:
  int engines = 3;        // are proposed for each graph; the last one takes it ...
  bool supported = true;  // ... or none does
  bool driver = true;     // else none can build its kernel
  size_t version = 91900;
  int64_t workspace_bytes = 1024;  // of every plan
  int64_t fail_call = -1;          // this call, counted from 0, fails
  bool started = true;             // else Create fails, as without a driver

  int64_t calls = 0;
  int64_t objects = 0;  // not destroyed
  int64_t plans = 0;    // that were built
  void* stream = nullptr;
  std::map<int64_t, float> numbers;  // bound by value to the last graph that ran

  size_t GetVersion() override { return version; }
  int Create(CudnnHandle** handle) override;
  int Destroy(CudnnHandle* handle) override;
  int SetStream(CudnnHandle* handle, void* stream) override;
  void GetLastErrorString(char* text, size_t bytes) override;
  int CreateDescriptor(int type, CudnnDescriptor** descriptor) override;
  int DestroyDescriptor(CudnnDescriptor* descriptor) override;
  int SetAttribute(CudnnDescriptor* descriptor, int attribute, int type, int64_t count,
                   const void* values) override;
  int GetAttribute(CudnnDescriptor* descriptor, int attribute, int type, int64_t requested, int64_t* count,
                   void* values) override;
  int Finalize(CudnnDescriptor* descriptor) override;
  int Execute(CudnnHandle* handle, CudnnDescriptor* plan, CudnnDescriptor* variant_pack) override;

 private:
  bool Fails() { return calls++ == fail_call; }
};

}  // namespace strata

#endif  // KERNELS_CUDNN_FAKE_CUDNN_H_
