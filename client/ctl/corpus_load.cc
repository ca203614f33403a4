// ckvctl corpus load: rows of files or of a prefilled text to holders, then a published corpus.

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/ctl/chunk_io.h"
#include "client/ctl/commands.h"
#include "client/ctl/load_source.h"
#include "client/reference_engine.h"
#include "proto/status.h"
#include "store/placement.h"

namespace ckv::ctl {
namespace {

constexpr uint32_t kTextChunkTokens = 1024;

struct LoadOptions {
  std::string name;
  std::vector<std::string> files;
  bool text = false;
  uint32_t chunk_tokens = 0;
  uint32_t replicas = 1;
  bool replace = false;
  bool dry_run = false;
  uint32_t max_tokens = 0;
  uint32_t threads = std::max(1u, std::thread::hardware_concurrency());
};

struct LoadResult {
  uint64_t version = 0;
  std::map<std::string, HolderTally> tallies;
};

absl::StatusOr<LoadSource> OpenSource(const Ctl& ctl, const LoadOptions& options) {
  if (!options.text) return OpenRowFiles(options.files, options.chunk_tokens, options.max_tokens);
  if (options.files.size() != 1) {
    return absl::InvalidArgumentError("--text takes one file: a corpus is one text");
  }
  CKV_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                       ReadTextTokens(options.files[0], options.max_tokens));
  CKV_ASSIGN_OR_RETURN(std::shared_ptr<const Engine> engine, ReferenceEngine::Create({}));
  WorkerPool pool(options.threads);
  const auto progress = ctl.StartProgress("prefill", "tokens", tokens.size(), /*quadratic=*/true);
  uint32_t last = 0;
  return PrefillText(std::move(engine), tokens,
                     options.chunk_tokens == 0 ? kTextChunkTokens : options.chunk_tokens, pool,
                     [&](uint32_t done) {
                       progress->Advance(done - last);
                       last = done;
                       return absl::OkStatus();
                     });
}

Corpus MakeCorpus(const Ctl& ctl, const LoadOptions& options, const LoadSource& source,
                  const std::vector<std::vector<HolderId>>& placement) {
  Corpus corpus;
  corpus.name = options.name;
  corpus.tenant = ctl.fleet.tenant;
  corpus.geometry = source.geometry;
  for (size_t i = 0; i < source.chunks.size(); ++i) {
    const ChunkInfo& info = source.chunks[i].info;
    corpus.chunks.push_back(
        {info.id, info.parent, info.token_count(), info.position, placement[i]});
  }
  return corpus;
}

HolderTally Sum(const std::map<std::string, HolderTally>& tallies) {
  HolderTally total;
  for (const auto& [name, tally] : tallies) {
    total.chunks_new += tally.chunks_new;
    total.chunks_reused += tally.chunks_reused;
    total.bytes_sent += tally.bytes_sent;
    total.bytes_sent_reused += tally.bytes_sent_reused;
  }
  return total;
}

Json TallyJson(const HolderTally& tally) {
  return {{"chunks_new", tally.chunks_new},
          {"chunks_reused", tally.chunks_reused},
          {"bytes_sent", tally.bytes_sent},
          {"bytes_sent_reused", tally.bytes_sent_reused}};
}

std::string TallyText(const LoadResult& result, const HolderTally& total) {
  Table table({{"HOLDER"}, {"NEW", true}, {"REUSED", true}, {"SENT", true}});
  const auto add = [&table](const std::string& name, const HolderTally& tally) {
    table.AddRow({name, std::to_string(tally.chunks_new), std::to_string(tally.chunks_reused),
                  FormatBytes(tally.bytes_sent)});
  };
  for (const auto& [name, tally] : result.tallies) add(name, tally);
  add("total", total);
  std::string text = table.Render();
  if (total.bytes_sent_reused > 0) {
    text += absl::StrFormat(
        "%s of it was for reused chunks: rows are sent until the holder says that it has them\n",
        FormatBytes(total.bytes_sent_reused));
  }
  return text;
}

// Nothing was asked of the holders, so what they have already is not known.
std::string PlanText(const LoadResult& result, const HolderTally& total) {
  Table table({{"HOLDER"}, {"CHUNKS", true}, {"ROWS", true}});
  const auto add = [&table](const std::string& name, const HolderTally& tally) {
    table.AddRow({name, std::to_string(tally.chunks_new), FormatBytes(tally.bytes_sent)});
  };
  for (const auto& [name, tally] : result.tallies) add(name, tally);
  add("total", total);
  return table.Render() +
         "a dry run: nothing was put or published; chunks that a holder has already would be "
         "reused\n";
}

absl::Status Report(const Ctl& ctl, const LoadOptions& options, const LoadSource& source,
                    const LoadResult& result, Duration elapsed) {
  Json holders = Json::array();
  for (const auto& [name, tally] : result.tallies) {
    Json holder = {{"id", name}};
    holder.update(TallyJson(tally));
    holders.push_back(std::move(holder));
  }
  const HolderTally total = Sum(result.tallies);
  const std::string text = RenderFields(
      {{"corpus", options.dry_run ? options.name
                                  : absl::StrFormat("%s version %d", options.name, result.version)},
       {"geometry", source.geometry.ToString()},
       {"chunks", absl::StrFormat("%s, each on %s", FormatCount(source.chunks.size(), "chunk"),
                                  FormatCount(options.replicas, "holder"))},
       {"tokens", std::to_string(source.token_count())},
       {"rows", FormatBytes(source.row_bytes())},
       {"took", FormatDuration(elapsed)}});
  Json json = {{"corpus", options.name},
               {"version", result.version},
               {"dry_run", options.dry_run},
               {"model", source.geometry.model},
               {"revision", source.geometry.revision},
               {"chunk_count", source.chunks.size()},
               {"token_count", source.token_count()},
               {"total_row_bytes", source.row_bytes()},
               {"replicas", options.replicas}};
  json.update(TallyJson(total));
  json["seconds"] = static_cast<double>(elapsed.count()) / 1e9;
  json["holders"] = holders;
  ctl.Print(text + "\n" + (options.dry_run ? PlanText(result, total) : TallyText(result, total)),
            json);
  return absl::OkStatus();
}

absl::Status RunLoad(const Ctl& ctl, const LoadOptions& options) {
  const Instant start = ctl.clock->Now();
  // What the directory would refuse at the end is refused before the prefill.
  if (options.name.empty()) return absl::InvalidArgumentError("NAME: a corpus needs a name");
  CKV_RETURN_IF_ERROR(ValidateName("NAME", options.name));
  Fleet fleet(ctl.fleet, ctl.clock);
  // Asked before the prefill, so that what cannot be published is refused in a second.
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> holders, fleet.Holders());
  const absl::StatusOr<Corpus> existing = fleet.GetCorpus(options.name);
  if (existing.ok() && !options.replace) {
    return absl::AlreadyExistsError(
        absl::StrFormat("corpus %s exists (version %d)\n  --replace publishes a new version of it",
                        options.name, existing->version));
  }
  if (!existing.ok() && existing.status().code() != absl::StatusCode::kNotFound) {
    return existing.status();
  }
  std::vector<HolderId> ids;
  for (const Member& holder : holders) ids.push_back(holder.id);
  CKV_RETURN_IF_ERROR(Annotate(PlaceChunks(1, ids, options.replicas).status(), "--replicas"));

  CKV_ASSIGN_OR_RETURN(const LoadSource source, OpenSource(ctl, options));
  CKV_ASSIGN_OR_RETURN(const auto placement,
                       PlaceChunks(source.chunks.size(), ids, options.replicas));
  const Corpus corpus = MakeCorpus(ctl, options, source, placement);
  CKV_RETURN_IF_ERROR(ValidateCorpus(corpus));

  LoadResult result;
  if (options.dry_run) {
    for (size_t i = 0; i < source.chunks.size(); ++i) {
      for (const HolderId& holder : placement[i]) {
        HolderTally& tally = result.tallies[holder.name];
        ++tally.chunks_new;
        tally.bytes_sent += source.chunks[i].info.token_count() * source.geometry.token_bytes();
      }
    }
    return Report(ctl, options, source, result, ctl.clock->Now() - start);
  }
  {
    const auto progress = ctl.StartProgress("put", "B", source.row_bytes() * options.replicas);
    CKV_ASSIGN_OR_RETURN(result.tallies,
                         PutChunks(source, placement, holders, corpus.tenant, *ctl.clock,
                                   [&](uint64_t bytes) { progress->Advance(bytes); }));
  }
  CKV_ASSIGN_OR_RETURN(const v1::PublishCorpusReply published,
                       PublishCorpus(fleet, corpus, options.replace));
  result.version = published.version();
  std::vector<std::string> warnings;
  CKV_RETURN_IF_ERROR(DropOrphans(fleet, published.orphans(), warnings).status());
  for (const std::string& warning : warnings) ctl.Note("ckvctl: warning: " + warning);
  return Report(ctl, options, source, result, ctl.clock->Now() - start);
}

}  // namespace

void AddCorpusLoadCommand(CLI::App& corpus, Ctl& ctl) {
  const auto options = std::make_shared<LoadOptions>();
  CLI::App* verb = AddVerb(
      corpus, "load", "Put chunks on holders and publish them as a corpus",
      "  ckvctl corpus load docs rows-0.safetensors rows-1.safetensors --chunk-tokens 2048\n"
      "  ckvctl corpus load gpl /usr/share/common-licenses/GPL-3 --text --max-tokens 8192\n"
      "  ckvctl corpus load docs rows.safetensors --replicas 2 --replace --dry-run\n\n"
      "Without --text a FILE is a safetensors file of rows, and of nothing else:\n"
      "  tensors   layers.0.ckv, layers.1.ckv, ... [T, d_qk] BF16 (or [T, 656] U8: fp8_ds_mla)\n"
      "            token_ids [T] I32\n"
      "  metadata  model, revision, d_v, d_rope, softmax_scale, base_position; where d_rope is "
      "not\n"
      "            0 also rope_style (interleaved or half), rope_theta, and with YaRN "
      "rope_scaling\n"
      "            (the JSON object of the model's config.json). All values are strings.\n"
      "A file whose base_position continues the one before it is its child; any other starts "
      "anew.");
  verb->add_option("NAME", options->name, "The corpus")->required();
  verb->add_option("FILE", options->files,
                   "safetensors files of rows, in order; with --text one text")
      ->required();
  verb->add_flag("--text", options->text,
                 "FILE is a text: prefill it with the reference engine, a token a byte");
  verb->add_option("--chunk-tokens", options->chunk_tokens,
                   absl::StrFormat("Cut into chunks of so many tokens (default: one chunk a file; "
                                   "%d with --text)",
                                   kTextChunkTokens))
      ->check(CLI::Range(1u, kChunkTokenCountMax));
  verb->add_option("--replicas", options->replicas, "Copies of each chunk")
      ->capture_default_str()
      ->check(CLI::Range(1u, kReplicaCountMax));
  verb->add_option("--max-tokens", options->max_tokens, "Take only so many tokens")
      ->check(CLI::Range(1u, kChunkTokenCountMax));
  verb->add_option("--threads", options->threads, "Threads of the prefill")
      ->capture_default_str()
      ->check(CLI::Range(1u, WorkerPool::kThreadCountMax));
  verb->add_flag("--replace", options->replace, "Publish a new version of an existing corpus");
  verb->add_flag("--dry-run", options->dry_run, "Read and place everything, but put nothing");
  verb->callback([&ctl, options] { ctl.run = [&ctl, options] { return RunLoad(ctl, *options); }; });
}

}  // namespace ckv::ctl
