// A shared library opened at run time for some of its functions, so that no program needs it to start.
#ifndef COMMON_SHARED_LIBRARY_H_
#define COMMON_SHARED_LIBRARY_H_

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"

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

// The Library of this process, made and loaded by the first call whose library->Load(name) succeeds; it
// stays. `name`: what Load takes, only looked at until then. Thread-safe.
template <class Library, class Name>
absl::StatusOr<Library*> LoadOnce(const Name& name) {
  static Mutex mu;
  static Library* loaded = nullptr;
  MutexLock lock(mu);
  if (loaded == nullptr) {
    auto library = std::make_unique<Library>();
    if (absl::Status status = library->Load(name); !status.ok()) return status;
    loaded = library.release();
  }
  return loaded;
}

}  // namespace strata

#endif  // COMMON_SHARED_LIBRARY_H_
