#include "kernels/cudnn/cudnn_library.h"

#include <dlfcn.h>

#include <memory>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr size_t kOldest = 90800;

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
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuDNN does not load: ", dlerror(),
                     "; install cuDNN 9.8 or newer, or add its folder to LD_LIBRARY_PATH"));
  }
  std::string missing;
  const auto find = [&](const char* symbol, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr && missing.empty()) missing = symbol;
  };
  find("cudnnGetVersion", get_version_);
  find("cudnnCreate", create_);
  find("cudnnDestroy", destroy_);
  find("cudnnSetStream", set_stream_);
  find("cudnnGetLastErrorString", last_error_);
  find("cudnnBackendCreateDescriptor", create_descriptor_);
  find("cudnnBackendDestroyDescriptor", destroy_descriptor_);
  find("cudnnBackendSetAttribute", set_);
  find("cudnnBackendGetAttribute", get_);
  find("cudnnBackendFinalize", finalize_);
  find("cudnnBackendExecute", execute_);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " has no ", missing, ": install cuDNN 9.8 or newer"));
  }
  if (get_version_() >= kOldest) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(name, " is version ", get_version_(), ": install cuDNN 9.8 or newer"));
}

}  // namespace

absl::StatusOr<CudnnApi*> LoadCudnn(const std::string& name) {
  static Mutex mu;
  static Library* loaded = nullptr;
  MutexLock lock(mu);
  if (loaded == nullptr) {
    auto library = std::make_unique<Library>();
    STRATA_RETURN_IF_ERROR(library->Load(name));
    loaded = library.release();
  }
  return loaded;
}

}  // namespace strata
