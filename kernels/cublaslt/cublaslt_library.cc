#include "kernels/cublaslt/cublaslt_library.h"

#include "common/shared_library.h"
#include "common/status.h"

namespace strata {
namespace {

using cublaslt::Algo;
using cublaslt::HeuristicResult;

class Library : public CublasLtApi {
 public:
  absl::Status Load(const std::vector<std::string>& names);

  size_t GetVersion() override { return get_version_(); }
  int Create(CublasLtHandle** handle) override { return create_(handle); }
  int Destroy(CublasLtHandle* handle) override { return destroy_(handle); }
  int MatmulDescCreate(CublasLtDesc** desc, int compute_type, int scale_type) override {
    return desc_create_(desc, compute_type, scale_type);
  }
  int MatmulDescDestroy(CublasLtDesc* desc) override { return desc_destroy_(desc); }
  int MatmulDescSetAttribute(CublasLtDesc* desc, int attribute, const void* value, size_t bytes) override {
    return desc_set_(desc, attribute, value, bytes);
  }
  int MatrixLayoutCreate(CublasLtLayout** layout, int type, uint64_t rows, uint64_t columns,
                         int64_t ld) override {
    return layout_create_(layout, type, rows, columns, ld);
  }
  int MatrixLayoutDestroy(CublasLtLayout* layout) override { return layout_destroy_(layout); }
  int PreferenceCreate(CublasLtPreference** preference) override { return preference_create_(preference); }
  int PreferenceDestroy(CublasLtPreference* preference) override { return preference_destroy_(preference); }
  int PreferenceSetAttribute(CublasLtPreference* preference, int attribute, const void* value,
                             size_t bytes) override {
    return preference_set_(preference, attribute, value, bytes);
  }
  int AlgoGetHeuristic(CublasLtHandle* handle, CublasLtDesc* desc, CublasLtLayout* a, CublasLtLayout* b,
                       CublasLtLayout* c, CublasLtLayout* d, CublasLtPreference* preference, int requested,
                       HeuristicResult* results, int* returned) override {
    return heuristic_(handle, desc, a, b, c, d, preference, requested, results, returned);
  }
  int AlgoConfigGetAttribute(const Algo* algo, int attribute, void* value, size_t bytes,
                             size_t* written) override {
    return config_get_(algo, attribute, value, bytes, written);
  }
  int Matmul(CublasLtHandle* handle, CublasLtDesc* desc, const void* alpha, const void* a,
             CublasLtLayout* a_layout, const void* b, CublasLtLayout* b_layout, const void* beta,
             const void* c, CublasLtLayout* c_layout, void* d, CublasLtLayout* d_layout, const Algo* algo,
             void* workspace, size_t workspace_bytes, void* stream) override {
    return matmul_(handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo,
                   workspace, workspace_bytes, stream);
  }

 private:
  size_t (*get_version_)() = nullptr;
  int (*create_)(CublasLtHandle**) = nullptr;
  int (*destroy_)(CublasLtHandle*) = nullptr;
  int (*desc_create_)(CublasLtDesc**, int, int) = nullptr;
  int (*desc_destroy_)(CublasLtDesc*) = nullptr;
  int (*desc_set_)(CublasLtDesc*, int, const void*, size_t) = nullptr;
  int (*layout_create_)(CublasLtLayout**, int, uint64_t, uint64_t, int64_t) = nullptr;
  int (*layout_destroy_)(CublasLtLayout*) = nullptr;
  int (*preference_create_)(CublasLtPreference**) = nullptr;
  int (*preference_destroy_)(CublasLtPreference*) = nullptr;
  int (*preference_set_)(CublasLtPreference*, int, const void*, size_t) = nullptr;
  int (*heuristic_)(CublasLtHandle*, CublasLtDesc*, CublasLtLayout*, CublasLtLayout*, CublasLtLayout*,
                    CublasLtLayout*, CublasLtPreference*, int, HeuristicResult*, int*) = nullptr;
  int (*config_get_)(const Algo*, int, void*, size_t, size_t*) = nullptr;
  int (*matmul_)(CublasLtHandle*, CublasLtDesc*, const void*, const void*, CublasLtLayout*, const void*,
                 CublasLtLayout*, const void*, const void*, CublasLtLayout*, void*, CublasLtLayout*,
                 const Algo*, void*, size_t, void*) = nullptr;
};

absl::Status Library::Load(const std::vector<std::string>& names) {
  STRATA_ASSIGN_OR_RETURN(SharedLibrary library, SharedLibrary::Open("cuBLASLt", names, "install cuBLAS 13"));
  library.Find("cublasLtGetVersion", get_version_);
  library.Find("cublasLtCreate", create_);
  library.Find("cublasLtDestroy", destroy_);
  library.Find("cublasLtMatmulDescCreate", desc_create_);
  library.Find("cublasLtMatmulDescDestroy", desc_destroy_);
  library.Find("cublasLtMatmulDescSetAttribute", desc_set_);
  library.Find("cublasLtMatrixLayoutCreate", layout_create_);
  library.Find("cublasLtMatrixLayoutDestroy", layout_destroy_);
  library.Find("cublasLtMatmulPreferenceCreate", preference_create_);
  library.Find("cublasLtMatmulPreferenceDestroy", preference_destroy_);
  library.Find("cublasLtMatmulPreferenceSetAttribute", preference_set_);
  library.Find("cublasLtMatmulAlgoGetHeuristic", heuristic_);
  library.Find("cublasLtMatmulAlgoConfigGetAttribute", config_get_);
  library.Find("cublasLtMatmul", matmul_);
  return library.AllFound();
}

}  // namespace

absl::StatusOr<CublasLtApi*> LoadCublasLt(const std::vector<std::string>& names) {
  return LoadOnce<Library>(names);
}

}  // namespace strata
