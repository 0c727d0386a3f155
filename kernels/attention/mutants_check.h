// What the mutation tests of the attention kernels share.
#ifndef KERNELS_ATTENTION_MUTANTS_CHECK_H_
#define KERNELS_ATTENTION_MUTANTS_CHECK_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kx/emu/mutants.h"

namespace strata::attention {

// `check` accepts the kernel as it is and complains of each of `names`; of those in `placed`, which take an
// ordering away, with the file and line of the access that went wrong.
inline void ExpectAllCaught(const std::string& prefix, const std::vector<std::string>& names,
                            const std::vector<std::string>& placed,
                            const std::function<std::string()>& check) {
  for (const kx::emu::MutationResult& result : kx::emu::RunMutants(prefix, names, check)) {
    printf("%-36s %s\n", result.name.empty() ? "(unchanged)" : result.name.c_str(), result.how.c_str());
    if (result.name.empty()) {
      EXPECT_FALSE(result.caught) << "the unchanged kernel: " << result.how;
      continue;
    }
    EXPECT_TRUE(result.caught) << result.name << " survived: " << result.how;
    if (std::find(placed.begin(), placed.end(), result.name) != placed.end()) {
      EXPECT_NE(result.how.find(".h:"), std::string::npos)
          << result.name << " without file and line: " << result.how;
    }
  }
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_MUTANTS_CHECK_H_
