#include "kernels/cudnn/cudnn_library.h"

#include "absl/strings/str_cat.h"
#include "common/shared_library.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr size_t kOldest = 90800;
constexpr char kRemedy[] = "install cuDNN 9.8 or newer";

class Library : public CudnnApi {
 public:
  absl::Status Load(const std::string& name);

  size_t GetVersion() override { return get_version_(); }
  int Create(CudnnHandle** handle) override { return create_(handle); }
  int Destroy(CudnnHandle* handle) override { return destroy_(handle); }
  int SetStream(CudnnHandle* handle, void* stream) override { return set_stream_(handle, stream); }
  void GetLastErrorString(char* text, size_t bytes) override { last_error_(text, bytes); }
  int CreateDescriptor(int type, CudnnDescriptor** descriptor) override {
    return create_descriptor_(type, descriptor);
  }
  int DestroyDescriptor(CudnnDescriptor* descriptor) override { return destroy_descriptor_(descriptor); }
  int SetAttribute(CudnnDescriptor* descriptor, int attribute, int type, int64_t count,
                   const void* values) override {
    return set_(descriptor, attribute, type, count, values);
  }
  int GetAttribute(CudnnDescriptor* descriptor, int attribute, int type, int64_t requested, int64_t* count,
                   void* values) override {
    return get_(descriptor, attribute, type, requested, count, values);
  }
  int Finalize(CudnnDescriptor* descriptor) override { return finalize_(descriptor); }
  int Execute(CudnnHandle* handle, CudnnDescriptor* plan, CudnnDescriptor* variant_pack) override {
    return execute_(handle, plan, variant_pack);
  }

 private:
  size_t (*get_version_)() = nullptr;
  int (*create_)(CudnnHandle**) = nullptr;
  int (*destroy_)(CudnnHandle*) = nullptr;
  int (*set_stream_)(CudnnHandle*, void*) = nullptr;
  void (*last_error_)(char*, size_t) = nullptr;
  int (*create_descriptor_)(int, CudnnDescriptor**) = nullptr;
  int (*destroy_descriptor_)(CudnnDescriptor*) = nullptr;
  int (*set_)(CudnnDescriptor*, int, int, int64_t, const void*) = nullptr;
  int (*get_)(CudnnDescriptor*, int, int, int64_t, int64_t*, void*) = nullptr;
  int (*finalize_)(CudnnDescriptor*) = nullptr;
  int (*execute_)(CudnnHandle*, CudnnDescriptor*, CudnnDescriptor*) = nullptr;
};

absl::Status Library::Load(const std::string& name) {
  STRATA_ASSIGN_OR_RETURN(SharedLibrary library, SharedLibrary::Open("cuDNN", {name}, kRemedy));
  library.Find("cudnnGetVersion", get_version_);
  library.Find("cudnnCreate", create_);
  library.Find("cudnnDestroy", destroy_);
  library.Find("cudnnSetStream", set_stream_);
  library.Find("cudnnGetLastErrorString", last_error_);
  library.Find("cudnnBackendCreateDescriptor", create_descriptor_);
  library.Find("cudnnBackendDestroyDescriptor", destroy_descriptor_);
  library.Find("cudnnBackendSetAttribute", set_);
  library.Find("cudnnBackendGetAttribute", get_);
  library.Find("cudnnBackendFinalize", finalize_);
  library.Find("cudnnBackendExecute", execute_);
  STRATA_RETURN_IF_ERROR(library.AllFound());
  if (get_version_() >= kOldest) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(name, " is version ", get_version_(), ": ", kRemedy));
}

}  // namespace

absl::StatusOr<CudnnApi*> LoadCudnn(const std::string& name) { return LoadOnce<Library>(name); }

}  // namespace strata
