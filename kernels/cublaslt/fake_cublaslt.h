// FakeCublasLt: the library's calls with plain loops on the CPU behind them. It takes the descriptors as the
// library does (column-major, attributes by number and size), refuses what the library refuses, records what
// it was asked for, and counts what was not destroyed.
#ifndef KERNELS_CUBLASLT_FAKE_CUBLASLT_H_
#define KERNELS_CUBLASLT_FAKE_CUBLASLT_H_

#include <cstdint>
#include <map>
#include <vector>

#include "kernels/cublaslt/cublaslt_api.h"

namespace strata {

class FakeCublasLt : public CublasLtApi {
 public:
  // What the heuristics offer, in order.
  struct Offer {
    uint32_t id = 0;
    uint32_t split_k = 1;
    size_t workspace_bytes = 0;
    int state = cublaslt::kSuccess;
  };
  std::vector<Offer> offers = {{.id = 66}};
  int64_t fail_call = -1;  // this call, counted from 0, fails
  bool started = true;     // else Create fails, as without a driver

  int64_t calls = 0;
  int64_t heuristics = 0;  // times that they were asked
  int64_t objects = 0;     // not destroyed
  uint32_t reduction_mask = 99;
  std::vector<uint32_t> used;  // ids of the algorithms that ran

  size_t GetVersion() override { return 130000; }
  int Create(CublasLtHandle** handle) override;
  int Destroy(CublasLtHandle* handle) override;
  int MatmulDescCreate(CublasLtDesc** desc, int compute_type, int scale_type) override;
  int MatmulDescDestroy(CublasLtDesc* desc) override;
  int MatmulDescSetAttribute(CublasLtDesc* desc, int attribute, const void* value, size_t bytes) override;
  int MatrixLayoutCreate(CublasLtLayout** layout, int type, uint64_t rows, uint64_t columns,
                         int64_t ld) override;
  int MatrixLayoutDestroy(CublasLtLayout* layout) override;
  int PreferenceCreate(CublasLtPreference** preference) override;
  int PreferenceDestroy(CublasLtPreference* preference) override;
  int PreferenceSetAttribute(CublasLtPreference* preference, int attribute, const void* value,
                             size_t bytes) override;
  int AlgoGetHeuristic(CublasLtHandle* handle, CublasLtDesc* desc, CublasLtLayout* a, CublasLtLayout* b,
                       CublasLtLayout* c, CublasLtLayout* d, CublasLtPreference* preference, int requested,
                       cublaslt::HeuristicResult* results, int* returned) override;
  int AlgoConfigGetAttribute(const cublaslt::Algo* algo, int attribute, void* value, size_t bytes,
                             size_t* written) override;
  int Matmul(CublasLtHandle* handle, CublasLtDesc* desc, const void* alpha, const void* a,
             CublasLtLayout* a_layout, const void* b, CublasLtLayout* b_layout, const void* beta,
             const void* c, CublasLtLayout* c_layout, void* d, CublasLtLayout* d_layout,
             const cublaslt::Algo* algo, void* workspace, size_t workspace_bytes, void* stream) override;

 private:
  bool Fails() { return calls++ == fail_call; }
};

// The value of an fp8 byte. kR8FE4M3: bias 7, no infinities; kR8FE5M2: bias 15.
float DecodeFp8(int type, uint8_t byte);

}  // namespace strata

#endif  // KERNELS_CUBLASLT_FAKE_CUBLASLT_H_
