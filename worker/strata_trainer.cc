// strata_trainer: one attempt of one job, started by the agent with its end of a socket pair; or, started by
// a person, `strata_trainer generate`.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "common/fd.h"
#include "common/number_flags.h"
#include "proto/job_spec/text.h"
#include "worker/trainer/generate.h"
#include "worker/trainer/trainer.h"
#include "worker/trainer_channel/trainer_channel.h"

namespace {

int RunGenerate(const strata::GenerateOptions& options) {
  // Nobody is left to read the text of a client that was killed.
  (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
  const absl::Status status = strata::Generate(options, [](absl::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  });
  if (status.ok()) {
    std::fputs("\n", stdout);
    return 0;
  }
  std::fprintf(stderr, "strata_trainer generate: %s\n", strata::Printable(status.ToString()).c_str());
  return absl::IsNotFound(status) ? 3 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Strata's trainer process; the worker agent starts it"};
  int agent_fd = -1;
  app.add_option("--agent-fd", agent_fd, "descriptor of the socket to the agent");
  strata::GenerateOptions options;
  CLI::App* generate = app.add_subcommand("generate", "print text from a checkpoint");
  generate->add_option("--checkpoint", options.checkpoint, "a step-* folder")->required();
  generate->add_option("--digest", options.digest, "sha256 that its manifest must have");
  generate->add_option("--prompt", options.prompt, "text to continue");
  generate->add_option("--max-tokens", options.max_tokens, "tokens to make")
      ->transform(strata::WholeNumber<int64_t>(1, 1 << 20));
  generate->add_option("--seed", options.seed, "the same seed gives the same text")
      ->transform(strata::WholeNumber<uint64_t>(0));
  generate->add_option("--temperature", options.temperature, "0: always the likeliest token")
      ->transform(strata::RealNumber(0, 100));
  generate->add_option("--threads", options.threads, "compute threads")
      ->transform(strata::WholeNumber(1, 1024));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (generate->parsed()) return RunGenerate(options);
  if (agent_fd < 0) {
    std::fprintf(stderr, "strata_trainer: --agent-fd is missing: the worker agent starts this program\n");
    return 2;
  }
  std::signal(SIGPIPE, SIG_IGN);
  strata::TrainerChannel channel((strata::Fd(agent_fd)));
  strata::Trainer trainer(channel);
  return trainer.Run();
}
