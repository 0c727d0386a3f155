// Mutations of kernels: named places where a kernel can be made wrong on purpose, to show that its tests
// would notice. KX_MUTANT (kx.h) writes one; the product is compiled without them. Only in emulation.
#ifndef KERNELS_KX_EMU_MUTANTS_H_
#define KERNELS_KX_EMU_MUTANTS_H_

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace strata::kx::emu {

// One per expansion of KX_MUTANT, static: registers its name when a kernel first reaches it.
class MutantSite {
 public:
  MutantSite(const char* name, const char* file, int line);
  bool Active() const { return active_.load(std::memory_order_relaxed); }

 private:
  friend class ActiveMutant;
  friend std::vector<std::string> ReachedMutants();
  const std::string name_;
  const char* file_;
  int line_;
  std::atomic<bool> active_{false};
};

// The names of all places reached so far in this process, sorted. Any thread.
std::vector<std::string> ReachedMutants();

// Switches the named place (in every instantiation that has it, also those reached later) to its bad side
// while it lives. One at a time in a process.
class ActiveMutant {
 public:
  explicit ActiveMutant(const std::string& name);
  ~ActiveMutant();
  ActiveMutant(const ActiveMutant&) = delete;
  ActiveMutant& operator=(const ActiveMutant&) = delete;
};

struct MutationResult {
  std::string name;
  bool caught = false;
  std::string how;  // the first complaint of the check
};

// Runs `check` once unchanged, which must be accepted ("" returned), then once for each mutant in `names`.
// `check` launches the kernels and returns "" or the first thing wrong with them: an emulator report, a
// difference to the reference. A result is "caught" when `check` complained. The result for "" (unchanged)
// comes first and is `caught` when the unchanged kernel was refused. A name that the unchanged run did not
// reach counts as not caught: a mutant nobody executes proves nothing; a place that was reached and whose
// name starts with `prefix` but that is not in `names` is reported likewise, so no mutant is forgotten.
std::vector<MutationResult> RunMutants(const std::string& prefix, const std::vector<std::string>& names,
                                       const std::function<std::string()>& check);

}  // namespace strata::kx::emu

#endif  // KERNELS_KX_EMU_MUTANTS_H_
