// A shared library opened at run time for some of its functions, so that no program needs it to start.
#ifndef COMMON_SHARED_LIBRARY_H_
#define COMMON_SHARED_LIBRARY_H_

#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace strata {

// The library stays loaded for good: such libraries have threads and exit handlers of their own, and
// functions found in one stay valid. Threads: an object belongs to one.
class SharedLibrary {
 public:
  // The first of `names` that loads. `what` is its name for people, `remedy` what one without it does, as in
  // "install X 2 or newer". kFailedPrecondition when none does: one line with dlerror's reason and the
  // remedy.
  static absl::StatusOr<SharedLibrary> Open(const std::string& what, const std::vector<std::string>& names,
                                            const std::string& remedy);

  // `function`, a pointer to a function, becomes `symbol`'s address; null if there is none.
  template <class Function>
  void Find(const char* symbol, Function& function) {
    static_assert(std::is_pointer_v<Function>);
    function = reinterpret_cast<Function>(Address(symbol));
  }

  // kFailedPrecondition: the first symbol that Find did not find, and the remedy.
  absl::Status AllFound() const;

 private:
  SharedLibrary(void* handle, std::string name, std::string remedy);
  void* Address(const char* symbol);

  void* handle_;
  std::string name_;
  std::string remedy_;
  std::string missing_;
};

}  // namespace strata

#endif  // COMMON_SHARED_LIBRARY_H_
