// The names that values of a step have (deploy/docs/metrics.md).
#ifndef CLIENT_CLI_METRIC_NAMES_H_
#define CLIENT_CLI_METRIC_NAMES_H_

#include <string>

namespace strata {

// Whether a row of metrics may hold a value or a text of this name. Members of a family (busy_ms.LANE) are
// not told apart: which there are depends on the job's plan.
bool IsMetricName(const std::string& name);

}  // namespace strata

#endif  // CLIENT_CLI_METRIC_NAMES_H_
