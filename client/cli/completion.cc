#include "client/cli/completion.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace strata {
namespace {

// Visits every command with the words that lead to it: "local run".
template <typename Visit>
void ForEach(const CommandNode& node, const std::string& path, const Visit& visit) {
  visit(path, node);
  for (const CommandNode& child : node.commands) {
    ForEach(child, path.empty() ? child.name : absl::StrCat(path, " ", child.name), visit);
  }
}

std::string Words(const CommandNode& node) {
  std::vector<std::string> words = node.options;
  for (const CommandNode& child : node.commands) words.push_back(child.name);
  return absl::StrJoin(words, " ");
}

// Finds the command by walking the words typed so far, then offers its words; zsh runs it by bashcompinit.
std::string BashScript(const CommandNode& root) {
  std::string words, files, known;
  ForEach(root, "", [&](const std::string& path, const CommandNode& node) {
    absl::StrAppend(&words, "    '", path, "') words='", Words(node), "' ;;\n");
    if (node.takes_file) absl::StrAppend(&files, files.empty() ? "" : "|", "'", path, "'");
    if (!path.empty()) absl::StrAppend(&known, known.empty() ? "" : "|", "'", path, "'");
  });
  return absl::StrCat(
      "_strata() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} path= word next words=\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    next=\"${path:+$path }$word\"\n"
      "    case \"$next\" in\n"
      "    ",
      known, ") path=$next ;;\n",
      "    esac\n"
      "  done\n"
      "  case \"$path\" in\n",
      words,
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
      "  case \"$path\" in\n"
      "    ",
      files, ") [[ $cur == -* ]] || COMPREPLY+=($(compgen -f -- \"$cur\")) ;;\n",
      "  esac\n"
      "}\n"
      "complete -o filenames -F _strata strata\n");
}

std::string FishScript(const CommandNode& root) {
  std::string script = "complete -c strata -f\n";
  ForEach(root, "", [&](const std::string& path, const CommandNode& node) {
    // Offered after exactly this path: all of its words were typed, and none of the next ones.
    std::vector<std::string> conditions;
    for (const absl::string_view word : std::vector<std::string>{path}) {
      if (!word.empty()) {
        conditions.push_back(
            absl::StrCat("__fish_seen_subcommand_from ",
                         absl::StrReplaceAll(word, {{" ", "; and __fish_seen_subcommand_from "}})));
      }
    }
    std::vector<std::string> children;
    for (const CommandNode& child : node.commands) children.push_back(child.name);
    if (!children.empty())
      conditions.push_back(absl::StrCat("not __fish_seen_subcommand_from ", absl::StrJoin(children, " ")));
    const std::string condition =
        conditions.empty() ? "" : absl::StrCat(" -n '", absl::StrJoin(conditions, "; and "), "'");
    for (const CommandNode& child : node.commands) {
      absl::StrAppend(&script, "complete -c strata", condition, " -a ", child.name, " -d '",
                      absl::StrReplaceAll(child.help, {{"'", "\\'"}}), "'\n");
    }
    for (const std::string& option : node.options) {
      if (option.rfind("--", 0) == 0)
        absl::StrAppend(&script, "complete -c strata", condition, " -l ", option.substr(2), "\n");
    }
    if (node.takes_file) absl::StrAppend(&script, "complete -c strata", condition, " -F\n");
  });
  return script;
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(const std::string& shell, const CommandNode& root) {
  if (shell == "bash") return BashScript(root);
  if (shell == "zsh") {
    return absl::StrCat("#compdef strata\nautoload -U +X bashcompinit && bashcompinit\n", BashScript(root));
  }
  if (shell == "fish") return FishScript(root);
  return absl::InvalidArgumentError(absl::StrCat("'", shell, "' is not a known shell: bash, zsh or fish"));
}

}  // namespace strata
