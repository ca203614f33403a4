// ckvctl version: which build this is.

#include <string>

#include "client/tools/ctl/commands.h"
#include "proto/base/version.h"

namespace ckv::ctl {
namespace {

absl::Status RunVersion(const Ctl& ctl) {
  const std::string version(Version());
  const std::string commit(Commit().empty() ? "unknown" : Commit());
  ctl.Print(RenderFields({{"ckvctl", version}, {"commit", commit}}),
            {{"version", version}, {"commit", commit}});
  return absl::OkStatus();
}

}  // namespace

void AddVersionCommand(CLI::App& app, Ctl& ctl) {
  CLI::App* verb =
      AddVerb(app, "version", "Show the version and the commit of this build",
              "  ckvctl version\n  ckvctl version -o json\n\n"
              "Members' versions are in ckv_build_info of their metrics. Holders of one fleet run\n"
              "one build: partials of two may differ in their last bits.");
  verb->callback([&ctl] { ctl.run = [&ctl] { return RunVersion(ctl); }; });
}

}  // namespace ckv::ctl
