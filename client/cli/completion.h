// Completion scripts of shells, generated from the tree of commands.
#ifndef CLIENT_CLI_COMPLETION_H_
#define CLIENT_CLI_COMPLETION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace strata {

struct CommandNode {
  std::string name;
  std::string help;
  std::vector<std::string> options;  // with their dashes
  bool takes_file = false;           // a positional argument is a file or folder
  std::vector<CommandNode> commands;
};

// For bash, zsh or fish; kInvalidArgument for another shell.
absl::StatusOr<std::string> CompletionScript(const std::string& shell, const CommandNode& root);

}  // namespace strata

#endif  // CLIENT_CLI_COMPLETION_H_
