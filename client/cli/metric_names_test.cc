#include "client/cli/metric_names.h"

#include <fstream>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace strata {
namespace {

// The names between back-quotes in the first column of the tables; "io_write_..." stands for those of
// io_read.
std::set<std::string> DocumentedNames() {
  std::ifstream file("deploy/docs/metrics.md");
  std::set<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `", 0) != 0 || line.rfind("| `wait_", 0) == 0) continue;
    const std::string cell = line.substr(2, line.find(" |", 2) - 2);
    for (size_t at = cell.find('`'); at != std::string::npos; at = cell.find('`', at + 1)) {
      const size_t end = cell.find('`', at + 1);
      names.insert(cell.substr(at + 1, end - at - 1));
      at = end;
    }
  }
  names.erase("io_write_...");
  return names;
}

TEST(MetricNamesTest, WhatIsDocumentedIsKnown) {
  const std::set<std::string> names = DocumentedNames();
  EXPECT_GT(names.size(), 30u);
  for (const std::string& name : names) EXPECT_TRUE(IsMetricName(name)) << name;
}

TEST(MetricNamesTest, WhatIsMisspeltIsNot) {
  for (const char* name : {"", "los", "loss ", "loss.x", "busy_ms", "busy_ms.", "stall.wait_read", "Loss"})
    EXPECT_FALSE(IsMetricName(name)) << name;
}

}  // namespace
}  // namespace strata
