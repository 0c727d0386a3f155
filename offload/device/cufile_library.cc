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

 private:
  cufile::Error (*open_)() = nullptr;
  cufile::Error (*close_)() = nullptr;
  cufile::Error (*get_properties_)(DriverProperties*) = nullptr;
};

absl::Status Library::Load(const std::string& name) {
  STRATA_ASSIGN_OR_RETURN(SharedLibrary library, SharedLibrary::Open("cuFile", {name}, kRemedy));
  library.Find("cuFileDriverOpen", open_);
  library.Find("cuFileDriverClose_v2", close_);
  library.Find("cuFileDriverGetProperties", get_properties_);
  return library.AllFound();
}

}  // namespace

absl::StatusOr<CufileApi*> LoadCufile(const std::string& name) { return LoadOnce<Library>(name); }

}  // namespace strata
