// A named thread that must be joined: destruction without Join() aborts, because a forgotten thread
// is a bug, not a leak.
#ifndef COMMON_THREAD_H_
#define COMMON_THREAD_H_

#include <functional>
#include <string>
#include <thread>

namespace strata {

class Thread {
 public:
  Thread() = default;
  // `name` is shown by ps and traces; the kernel keeps its first 15 bytes.
  Thread(std::string name, std::function<void()> body);
  Thread(Thread&&) = default;
  Thread& operator=(Thread&& other);
  ~Thread();

  bool joinable() const { return thread_.joinable(); }
  void Join();

 private:
  std::thread thread_;
};

}  // namespace strata

#endif  // COMMON_THREAD_H_
