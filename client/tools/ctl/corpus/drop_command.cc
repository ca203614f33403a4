// ckvctl corpus drop: one corpus by its name, or all of a model's revision.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/fleet/orphans.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

struct DropOptions {
  std::string name;
  std::string revision;
  std::string model;
  bool dry_run = false;
};

// The result of the drops so far.
struct Dropped {
  std::vector<std::string> corpora;
  uint32_t chunk_count = 0;  // copies that no other corpus uses
  std::vector<std::string> warnings;
};

absl::Status DropOne(Fleet& fleet, const std::string& name, Dropped& dropped) {
  CKV_ASSIGN_OR_RETURN(const DropCounts counts, DropCorpus(fleet, name, dropped.warnings));
  for (const auto& [holder, count] : counts) dropped.chunk_count += count;
  dropped.corpora.push_back(name);
  return absl::OkStatus();
}

std::string Copies(uint32_t count) {
  return absl::StrFormat("%d chunk %s", count, count == 1 ? "copy" : "copies");
}

absl::Status RunDropName(const Ctl& ctl, const std::string& name) {
  Fleet fleet(ctl.fleet, ctl.clock);
  // One that is not proven to be whole is Unavailable, and can be dropped.
  const absl::StatusOr<Corpus> known = fleet.GetCorpus(name);
  if (!absl::IsUnavailable(known.status())) CKV_RETURN_IF_ERROR(known.status());
  const std::string& tenant = fleet.options().tenant;
  if (known.ok() && known->tenant != tenant) {
    return absl::NotFoundError(
        absl::StrFormat("no corpus '%s' of tenant '%s'\n  %s is shared: drop it without --tenant",
                        name, tenant, name));
  }
  Dropped dropped;
  CKV_RETURN_IF_ERROR(DropOne(fleet, name, dropped));
  for (const std::string& warning : dropped.warnings) ctl.Note("ckvctl: warning: " + warning);
  ctl.Print(
      absl::StrFormat("dropped corpus %s and %s that no other corpus uses\n", name,
                      Copies(dropped.chunk_count)),
      {{"corpus", name}, {"chunks_dropped", dropped.chunk_count}, {"warnings", dropped.warnings}});
  return absl::OkStatus();
}

// Returns the tenant's own corpora of the revision, by name.
absl::StatusOr<std::vector<std::string>> OfRevision(Fleet& fleet, const DropOptions& options) {
  CKV_ASSIGN_OR_RETURN(const v1::ListCorporaReply list, fleet.ListCorpora());
  std::vector<std::string> names;
  for (const v1::CorpusSummary& summary : list.corpora()) {
    if (summary.tenant() != fleet.options().tenant) continue;
    if (!options.model.empty() && summary.model() != options.model) continue;
    const absl::StatusOr<Corpus> corpus = fleet.GetCorpus(summary.name());
    if (absl::IsNotFound(corpus.status())) continue;  // dropped meanwhile
    CKV_RETURN_IF_ERROR(corpus.status());
    if (corpus->geometry.revision == options.revision) names.push_back(corpus->name);
  }
  if (!names.empty()) return names;
  return absl::NotFoundError(absl::StrFormat(
      "no corpus%s has the revision '%s'\n  ckvctl corpus show NAME shows the revision of one",
      options.model.empty() ? std::string() : " of model '" + options.model + "'",
      options.revision));
}

absl::Status RunDropRevision(const Ctl& ctl, const DropOptions& options) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const std::vector<std::string> names, OfRevision(fleet, options));
  Dropped dropped;
  absl::Status status;
  for (const std::string& name : names) {
    if (options.dry_run) {
      dropped.corpora.push_back(name);
    } else if (status.ok()) {
      status = DropOne(fleet, name, dropped);
    }
  }
  for (const std::string& warning : dropped.warnings) ctl.Note("ckvctl: warning: " + warning);
  std::string text;
  for (const std::string& name : dropped.corpora)
    text += absl::StrFormat("%s corpus %s\n", options.dry_run ? "would drop" : "dropped", name);
  if (!options.dry_run) {
    text += absl::StrFormat("dropped %s and %s that no other corpus uses\n",
                            dropped.corpora.size() == 1
                                ? std::string("1 corpus")
                                : absl::StrFormat("%d corpora", dropped.corpora.size()),
                            Copies(dropped.chunk_count));
  }
  ctl.Print(text, {{"revision", options.revision},
                   {"corpora", dropped.corpora},
                   {"dry_run", options.dry_run},
                   {"chunks_dropped", dropped.chunk_count},
                   {"warnings", dropped.warnings}});
  return status;
}

}  // namespace

void AddCorpusDropCommand(CLI::App& corpus, Ctl& ctl) {
  const auto options = std::make_shared<DropOptions>();
  CLI::App* drop =
      AddVerb(corpus, "drop", "Drop a corpus, and the chunks that no other corpus uses",
              "  ckvctl corpus drop docs\n  ckvctl corpus drop --revision 604d566 --dry-run\n\n"
              "--revision drops all corpora of old weights. Each is dropped by itself: readers of "
              "one\nfinish with it, and an interrupted command has dropped those that it prints.");
  CLI::Option* name = drop->add_option("NAME", options->name, "The corpus");
  CLI::Option* revision =
      drop->add_option("--revision", options->revision,
                       "Drop all corpora of the tenant with this revision of the model instead")
          ->check(NotEmpty())
          ->type_name("REVISION")
          ->excludes(name);
  drop->add_option("--model", options->model, "Only corpora of this model")
      ->needs(revision)
      ->type_name("MODEL");
  drop->add_flag("--dry-run", options->dry_run, "Show the corpora, and drop none")->needs(revision);
  drop->callback([&ctl, options] {
    ctl.run = [&ctl, options] {
      if (!options->revision.empty()) return RunDropRevision(ctl, *options);
      if (!options->name.empty()) return RunDropName(ctl, options->name);
      return absl::Status(absl::InvalidArgumentError("give the corpus's NAME, or --revision"));
    };
  });
}

}  // namespace ckv::ctl
