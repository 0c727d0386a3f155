#include "proto/connection_error/connection_error.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace strata {
namespace {

std::string Explain(absl::string_view message, absl::StatusCode code = absl::StatusCode::kUnavailable) {
  return ExplainNoAnswer(code, message, "host:7411", "--server");
}

TEST(ExplainNoAnswerTest, SaysThatNobodyIsThereAndWhy) {
  const std::string remedy = ": start strata_server there, or name the coordinator's address with --server";
  EXPECT_EQ(Explain("failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:7411: Failed to "
                    "connect to remote host: Connection refused"),
            absl::StrCat("nobody answers at host:7411 (Connection refused)", remedy));
  EXPECT_EQ(
      Explain("failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:7411: tcp handshaker "
              "shutdown"),
      absl::StrCat("nobody answers at host:7411", remedy));
}

TEST(ExplainNoAnswerTest, TellsAWrongNameABrokenConnectionAndASlowServerApart) {
  EXPECT_EQ(Explain("DNS resolution failed for host:7411: C-ares status is not ARES_SUCCESS: not found"),
            "no address is known for the host of host:7411: correct --server");
  EXPECT_EQ(Explain("Socket closed"),
            "the connection to the coordinator at host:7411 broke: it may be starting again, try again");
  EXPECT_EQ(Explain("recvmsg:Connection reset by peer"),
            "the connection to the coordinator at host:7411 broke (Connection reset by peer): it may be "
            "starting again, try again");
  EXPECT_EQ(Explain("Deadline Exceeded", absl::StatusCode::kDeadlineExceeded),
            "the coordinator at host:7411 has not answered in time: it or the way to it is slow, try again");
}

}  // namespace
}  // namespace strata
