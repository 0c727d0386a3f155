#include "offload/device/cufile_library.h"

#include <cstddef>

#include "common/shared_library.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr char kRemedy[] = "install GPUDirect Storage (nvidia-gds)";

// CUfileDrvProps_t of cuFile 1, with room for what later versions append.
struct DriverProperties {
  struct {
    unsigned major_version = 0, minor_version = 0;
    size_t poll_thresh_size = 0, max_direct_io_size = 0;
    unsigned status_flags = 0, control_flags = 0;
  } nvfs;
  unsigned features = 0;
  unsigned sizes[5] = {};
  std::byte later[256] = {};
};

class Library : public CufileApi {
 public:
  absl::Status Load(const std::string& name);

  cufile::Error DriverOpen() override { return open_(); }
  cufile::Error DriverClose() override { return close_(); }
  cufile::Error DriverGetProperties(cufile::Properties* properties) override {
    DriverProperties all;
    const cufile::Error error = get_properties_(&all);
    *properties = {.nvfs_major = all.nvfs.major_version,
                   .nvfs_minor = all.nvfs.minor_version,
                   .status = all.nvfs.status_flags,
                   .features = all.features};
    return error;
  }

  cufile::Error HandleRegister(cufile::Handle* handle, int fd) override {
    cufile::Description description;
    description.handle.fd = fd;
    return handle_register_(handle, &description);
  }
  void HandleDeregister(cufile::Handle handle) override { handle_deregister_(handle); }
  cufile::Error BufRegister(const void* base, size_t bytes) override {
    return buf_register_(base, bytes, /*flags=*/0);
  }
  cufile::Error BufDeregister(const void* base) override { return buf_deregister_(base); }
  ssize_t Read(cufile::Handle handle, void* base, size_t bytes, off_t file_offset,
               off_t base_offset) override {
    return read_(handle, base, bytes, file_offset, base_offset);
  }
  ssize_t Write(cufile::Handle handle, const void* base, size_t bytes, off_t file_offset,
                off_t base_offset) override {
    return write_(handle, base, bytes, file_offset, base_offset);
  }

 private:
  cufile::Error (*open_)() = nullptr;
  cufile::Error (*close_)() = nullptr;
  cufile::Error (*get_properties_)(DriverProperties*) = nullptr;
  cufile::Error (*handle_register_)(cufile::Handle*, cufile::Description*) = nullptr;
  void (*handle_deregister_)(cufile::Handle) = nullptr;
  cufile::Error (*buf_register_)(const void*, size_t, int) = nullptr;
  cufile::Error (*buf_deregister_)(const void*) = nullptr;
  ssize_t (*read_)(cufile::Handle, void*, size_t, off_t, off_t) = nullptr;
  ssize_t (*write_)(cufile::Handle, const void*, size_t, off_t, off_t) = nullptr;
};

absl::Status Library::Load(const std::string& name) {
  STRATA_ASSIGN_OR_RETURN(SharedLibrary library, SharedLibrary::Open("cuFile", {name}, kRemedy));
  library.Find("cuFileDriverOpen", open_);
  library.Find("cuFileDriverClose_v2", close_);
  library.Find("cuFileDriverGetProperties", get_properties_);
  library.Find("cuFileHandleRegister", handle_register_);
  library.Find("cuFileHandleDeregister", handle_deregister_);
  library.Find("cuFileBufRegister", buf_register_);
  library.Find("cuFileBufDeregister", buf_deregister_);
  library.Find("cuFileRead", read_);
  library.Find("cuFileWrite", write_);
  return library.AllFound();
}

}  // namespace

absl::StatusOr<CufileApi*> LoadCufile(const std::string& name) { return LoadOnce<Library>(name); }

}  // namespace strata
