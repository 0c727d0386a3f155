// FakeCufile: a machine with GPUDirect Storage, or with what a test takes away. It counts what stays open.
#ifndef OFFLOAD_DEVICE_FAKE_CUFILE_H_
#define OFFLOAD_DEVICE_FAKE_CUFILE_H_

#include "absl/status/statusor.h"
#include "offload/device/cufile_api.h"

namespace strata {

class FakeCufile : public CufileApi {
 public:
  cufile::Properties properties = {
      .nvfs_major = 2, .nvfs_minor = 19, .status = 1u << cufile::kNvmeSupported, .features = 0};
  int fail_call = -1;                                   // this call, counted from 0, fails ...
  cufile::Error error = {cufile::kNvfsDriverError, 0};  // ... so

  int calls = 0;
  int open = 0;

  cufile::Error DriverOpen() override {
    if (calls++ == fail_call) return error;
    ++open;
    return {};
  }
  cufile::Error DriverClose() override {
    --open;
    return calls++ == fail_call ? error : cufile::Error();
  }
  cufile::Error DriverGetProperties(cufile::Properties* asked) override {
    if (calls++ == fail_call) return error;
    *asked = properties;
    return {};
  }
};

// As the loader on a machine without it.
inline absl::StatusOr<CufileApi*> NoCufile() { return absl::FailedPreconditionError("no cuFile here"); }

}  // namespace strata

#endif  // OFFLOAD_DEVICE_FAKE_CUFILE_H_
