#include "common/thread.h"

#include <pthread.h>

#include <utility>

#include "common/check.h"

namespace strata {

Thread::Thread(std::string name, std::function<void()> body)
    : thread_([name = std::move(name), body = std::move(body)] {
        pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
        body();
      }) {}

Thread& Thread::operator=(Thread&& other) {
  STRATA_CHECK(!thread_.joinable());
  thread_ = std::move(other.thread_);
  return *this;
}

Thread::~Thread() { STRATA_CHECK(!thread_.joinable()); }

void Thread::Join() { thread_.join(); }

}  // namespace strata
