#include "kernels/kx/emu/mutants.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>

namespace strata::kx::emu {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<MutantSite*> sites;
  std::string active;
};
// Never destroyed: sites are static objects of other files.
Registry& TheRegistry() {
  static auto* registry = new Registry;
  return *registry;
}

}  // namespace

MutantSite::MutantSite(const char* name, const char* file, int line) : name_(name), file_(file), line_(line) {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  for (const MutantSite* other : registry.sites) {
    // Instantiations of one template share the place; two places may not share the name.
    if (other->name_ == name_ && (other->line_ != line_ || std::string(other->file_) != file_)) {
      fprintf(stderr, "mutant \"%s\" is at %s:%d and at %s:%d\n", name, other->file_, other->line_, file,
              line);
      abort();
    }
  }
  active_ = registry.active == name_;
  registry.sites.push_back(this);
}

std::vector<std::string> ReachedMutants() {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  std::set<std::string> names;
  for (const MutantSite* site : registry.sites) names.insert(site->name_);
  return {names.begin(), names.end()};
}

ActiveMutant::ActiveMutant(const std::string& name) {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  if (!registry.active.empty()) {
    fprintf(stderr, "mutants %s and %s at once\n", registry.active.c_str(), name.c_str());
    abort();
  }
  registry.active = name;
  for (MutantSite* site : registry.sites) site->active_ = site->name_ == name;
}

ActiveMutant::~ActiveMutant() {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.active.clear();
  for (MutantSite* site : registry.sites) site->active_ = false;
}

std::vector<MutationResult> RunMutants(const std::string& prefix, const std::vector<std::string>& names,
                                       const std::function<std::string()>& check) {
  std::vector<MutationResult> results;
  const std::string unchanged = check();
  results.push_back({"", !unchanged.empty(), unchanged});
  const std::vector<std::string> reached = ReachedMutants();
  const std::set<std::string> listed(names.begin(), names.end());
  for (const std::string& name : reached) {
    if (name.compare(0, prefix.size(), prefix) == 0 && listed.count(name) == 0) {
      results.push_back({name, false, "is in the source but not in the test's list"});
    }
  }
  const std::set<std::string> known(reached.begin(), reached.end());
  for (const std::string& name : names) {
    if (known.count(name) == 0) {
      results.push_back({name, false, "was never reached by the check"});
      continue;
    }
    const ActiveMutant active(name);
    const std::string complaint = check();
    results.push_back({name, !complaint.empty(), complaint});
  }
  return results;
}

}  // namespace strata::kx::emu
