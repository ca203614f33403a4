// ckvctl corpus set and corpus rollback: a corpus' policy, and the return to an earlier version.
// Both read the corpus, and publish it again if no one changed it meanwhile.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/corpus/policy_options.h"
#include "client/tools/ctl/corpus/publish_corpus.h"
#include "client/tools/ctl/fleet/kept_change.h"
#include "client/tools/ctl/fleet/orphans.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

// Reads the tenant's own corpus, as it was published.
absl::StatusOr<Corpus> OwnCorpus(Fleet& fleet, const std::string& name) {
  CKV_ASSIGN_OR_RETURN(Corpus corpus, fleet.GetCorpus(name));
  const std::string& tenant = fleet.options().tenant;
  if (corpus.tenant != tenant) {
    return absl::NotFoundError(
        absl::StrFormat("no corpus '%s' of tenant '%s'\n  %s is shared: change it without --tenant",
                        name, tenant, name));
  }
  for (ChunkPlacement& chunk : corpus.chunks) chunk.set_leased({});  // reported, not published
  return corpus;
}

// Publishes `next` in place of version `current`, and drops the chunks that no corpus needs.
// Returns the new version.
absl::StatusOr<uint64_t> Replace(const Ctl& ctl, Fleet& fleet, const Corpus& next,
                                 uint64_t current) {
  CKV_ASSIGN_OR_RETURN(const v1::PublishCorpusReply published,
                       PublishCorpus(fleet, next, /*replace=*/true, current));
  std::vector<std::string> warnings;
  const std::string late = AwaitKeptBy(fleet, next.name, next.chunks);
  if (!late.empty()) warnings.push_back(late);
  CKV_RETURN_IF_ERROR(DropOrphans(fleet, published.orphans(), warnings).status());
  for (const std::string& warning : warnings) ctl.Note("ckvctl: warning: " + warning);
  return published.version();
}

absl::Status RunSet(const Ctl& ctl, const std::string& name, const PolicyOptions& options) {
  const CorpusPolicy policy = PolicyFrom(options);
  if (policy == CorpusPolicy())
    return absl::InvalidArgumentError("give --ttl, --quota or --keep-versions");
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(Corpus corpus, OwnCorpus(fleet, name));
  const uint64_t current = corpus.version;
  corpus.policy = policy;
  CKV_ASSIGN_OR_RETURN(const uint64_t version, Replace(ctl, fleet, corpus, current));
  CKV_ASSIGN_OR_RETURN(const Corpus now, fleet.GetCorpus(name));
  Json json = {{"corpus", name}, {"version", version}};
  json.update(PolicyJson(now.policy));
  ctl.Print(absl::StrFormat("corpus %s, version %d: %s\n", name, version,
                            PolicyText(now.policy, WallClockMilliseconds())),
            json);
  return absl::OkStatus();
}

// Returns the kept versions of the corpus, the latest first.
absl::StatusOr<std::vector<uint64_t>> VersionsOf(Fleet& fleet, const std::string& name) {
  CKV_ASSIGN_OR_RETURN(const v1::ListCorporaReply list, fleet.ListCorpora());
  std::vector<uint64_t> versions;
  for (const v1::CorpusSummary& summary : list.corpora()) {
    const std::optional<VersionName> parsed = ParseVersionName(summary.name());
    if (parsed && parsed->name == name && summary.tenant() == fleet.options().tenant)
      versions.push_back(parsed->version);
  }
  std::sort(versions.rbegin(), versions.rend());
  return versions;
}

absl::StatusOr<uint64_t> ChooseVersion(Fleet& fleet, const std::string& name,
                                       std::optional<uint64_t> wanted) {
  CKV_ASSIGN_OR_RETURN(const std::vector<uint64_t> versions, VersionsOf(fleet, name));
  if (versions.empty()) {
    return absl::NotFoundError(absl::StrFormat(
        "corpus %s has no earlier version\n  ckvctl corpus set %s --keep-versions 2 keeps those "
        "that are replaced from now on",
        name, name));
  }
  if (!wanted) return versions.front();
  if (std::find(versions.begin(), versions.end(), *wanted) != versions.end()) return *wanted;
  std::string kept;
  for (const uint64_t version : versions)
    kept += (kept.empty() ? "" : ", ") + std::to_string(version);
  return absl::NotFoundError(
      absl::StrFormat("version %d of corpus %s is not kept\n  kept are: %s", *wanted, name, kept));
}

absl::Status RunRollback(const Ctl& ctl, const std::string& name, std::optional<uint64_t> to) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const Corpus current, OwnCorpus(fleet, name));
  CKV_ASSIGN_OR_RETURN(const uint64_t version, ChooseVersion(fleet, name, to));
  CKV_ASSIGN_OR_RETURN(Corpus next, OwnCorpus(fleet, VersionNameOf(name, version)));
  next.name = name;
  next.policy = {};  // that of the corpus stays
  CKV_ASSIGN_OR_RETURN(const uint64_t published, Replace(ctl, fleet, next, current.version));
  const bool is_kept = current.policy.kept_version_count.value_or(0) > 0;
  ctl.Print(absl::StrFormat("corpus %s: version %d has the chunks of version %d\n", name, published,
                            version) +
                (is_kept ? absl::StrFormat("to undo: ckvctl corpus rollback %s --to %d\n", name,
                                           current.version)
                         : ""),
            {{"corpus", name}, {"version", published}, {"from", current.version}, {"to", version}});
  return absl::OkStatus();
}

}  // namespace

void AddCorpusVersionCommands(CLI::App& corpus, Ctl& ctl) {
  const auto name = std::make_shared<std::string>();
  const auto policy = std::make_shared<PolicyOptions>();
  CLI::App* set = AddVerb(
      corpus, "set", "Set how long a corpus lives, how large it may be, and what is kept of it",
      "  ckvctl corpus set docs --keep-versions 2\n"
      "  ckvctl corpus set nightly --ttl 720h --quota 400GiB\n\n"
      "An option that is not given stays as it is; 0 ends it. --ttl counts from when the chunks\n"
      "last changed, and again from now if its length changes. A kept version is a corpus of its\n"
      "own, NAME@VERSION: it can be shown, read and dropped, and takes space on holders.");
  set->add_option("NAME", *name, "The corpus")->required();
  AddPolicyOptions(*set, *policy);
  set->callback([&ctl, name, policy] {
    ctl.run = [&ctl, name, policy] { return RunSet(ctl, *name, *policy); };
  });

  const auto to = std::make_shared<std::optional<uint64_t>>();
  CLI::App* rollback =
      AddVerb(corpus, "rollback", "Return a corpus to an earlier version that was kept",
              "  ckvctl corpus rollback docs\n  ckvctl corpus list        # shows docs@VERSION\n"
              "  ckvctl corpus rollback docs --to 1732800000123\n\n"
              "The chunks of the earlier version are published as a new one; no rows move. The\n"
              "version that is replaced is kept too (corpus set --keep-versions).");
  rollback->add_option("NAME", *name, "The corpus")->required();
  rollback->add_option("--to", *to, "The version (default: the latest that was kept)")
      ->check(WholeNumber())
      ->type_name("VERSION");
  rollback->callback(
      [&ctl, name, to] { ctl.run = [&ctl, name, to] { return RunRollback(ctl, *name, *to); }; });
}

}  // namespace ckv::ctl
