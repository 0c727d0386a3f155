#include "common/shared_library.h"

#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace strata {

absl::StatusOr<SharedLibrary> SharedLibrary::Open(const std::string& what,
                                                  const std::vector<std::string>& names,
                                                  const std::string& remedy) {
  std::string why = "no name was given";
  for (const std::string& name : names) {
    void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return SharedLibrary(handle, name, remedy);
    why = dlerror();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(what, " does not load: ", why, "; ", remedy, ", or add its folder to LD_LIBRARY_PATH"));
}

SharedLibrary::SharedLibrary(void* handle, std::string name, std::string remedy)
    : handle_(handle), name_(std::move(name)), remedy_(std::move(remedy)) {}

void* SharedLibrary::Address(const char* symbol) {
  void* const address = dlsym(handle_, symbol);
  if (address == nullptr && missing_.empty()) missing_ = symbol;
  return address;
}

absl::Status SharedLibrary::AllFound() const {
  if (missing_.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(name_, " has no ", missing_, ": ", remedy_));
}

}  // namespace strata
