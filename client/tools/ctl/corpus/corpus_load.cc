// ckvctl corpus load: puts chunks of files, arrays or prefilled tokens on holders, then publishes a
// corpus.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "client/publish/capacity_placement.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/corpus/finite_rows.h"
#include "client/tools/ctl/corpus/llama_source.h"
#include "client/tools/ctl/corpus/load_report.h"
#include "client/tools/ctl/corpus/load_source.h"
#include "client/tools/ctl/corpus/npy_source.h"
#include "client/tools/ctl/corpus/policy_options.h"
#include "client/tools/ctl/corpus/prefill_source.h"
#include "client/tools/ctl/corpus/put_load.h"
#include "client/tools/ctl/corpus/token_lines.h"
#include "client/tools/ctl/interrupt.h"
#include "client/tools/reference_engine/reference_engine.h"
#include "proto/base/status.h"
#include "proto/host/control_groups.h"
#include "store/corpus/placement.h"
#include "store/formats/llama_state.h"

namespace ckv::ctl {
namespace {

constexpr uint32_t kPrefillChunkTokens = 1024;
// A file may have any number of rows. As one chunk, all of them would be on one holder.
constexpr uint32_t kRowChunkTokens = 2048;

constexpr char kExamples[] =
    "  ckvctl corpus load docs rows-0.safetensors rows-1.safetensors\n"
    "  ckvctl corpus load docs exported/ --replicas 2          # a folder with an index\n"
    "  ckvctl corpus load docs rows.npy --dtype f16 --geometry v2-lite.json --token-ids ids.npy\n"
    "  ckvctl corpus load docs slot.ggsq --geometry v2-lite.json   # prefilled by llama.cpp\n"
    "  ckvctl corpus load gpl /usr/share/common-licenses/GPL-3 --text --max-tokens 8192\n"
    "  ckvctl corpus load notes notes.jsonl --cut document --standalone\n"
    "  ckvctl corpus load docs rows.safetensors --replace --dry-run   # what would be sent\n"
    "  ckvctl corpus load docs rows-2.safetensors --extend            # behind what it has\n"
    "  pdftotext manual.pdf - | ckvctl corpus load manual - --text    # - is stdin\n"
    "\n"
    "A FILE is, all of one kind:\n"
    "  rows          safetensors, with nothing else in it:\n"
    "    tensors     layers.0.ckv, layers.1.ckv, ... [T, d_qk] BF16 (or [T, 656] U8: fp8_ds_mla)\n"
    "                layers.0.index_k, ... [T, dim] BF16 or [T, dim + 4] U8, if metadata has "
    "index\n"
    "                token_ids [T] I32 or I64, ids from 0 to 2^31 - 1\n"
    "    metadata    model, revision, d_v, d_rope, softmax_scale, base_position. If d_rope is not\n"
    "                0 also rope_style (interleaved or half), rope_theta, and with YaRN\n"
    "                rope_scaling (the JSON object of the model's config.json). All values are\n"
    "                strings. extra_keys is optional. A file whose base_position is\n"
    "                where the previous file ends continues it;\n"
    "                any other file starts a new sequence.\n"
    "  a folder      the same tensors in several files, by model.safetensors.index.json\n"
    "  FILE.npy      [layers, T, d_qk], one array, with --dtype, --geometry and --token-ids\n"
    "  FILE.ggsq     a sequence state of llama.cpp, of any name: a saved slot of llama-server, or\n"
    "                what llama_state_seq_save_file wrote. With --geometry, whose rope_style is\n"
    "                interleaved, and whose rope_theta and yarn are those of the engine: no file\n"
    "                has them. Keys of f16 are rounded to bf16\n"
    "  FILE.jsonl    one document a line: [ids] or {\"token_ids\": [ids]}, which the reference "
    "engine\n"
    "                prefills, so ids from 0 to 255; --text: texts, a token a byte\n"
    "  -             stdin, with --jsonl or --text\n"
    "\n"
    "All pictures have the same token ids, and so do all sounds. Extra keys distinguish them:\n"
    "[{\"begin\": 17, \"tokens\": 256, \"digest\": \"9f2c\"}], JSON in the metadata extra_keys of "
    "a\n"
    "file of rows, in a line's \"extra_keys\", or in the file of --extra-keys. This key affects\n"
    "tokens 17 to 272 of the file or the line. A key without begin and tokens, as for an adapter,\n"
    "affects all. A prompt must have exactly a chunk's keys to find it (ckvctl chunk find).\n"
    "\n"
    "--cut chooses where chunks end:\n"
    "  fixed         every --chunk-tokens tokens\n"
    "  document      at the end of a document (a line, a text, a file of rows), and within one\n"
    "                every --chunk-max tokens\n"
    "  content       where a hash of the tokens ends one, about every --chunk-tokens. An edit\n"
    "                moves only the cuts around it. With --standalone the other chunks keep their\n"
    "                ids and are reused. Without it a chunk's id depends on the chunks before it.\n"
    "\n"
    "Tokens are prefilled as one sequence, in memory as a whole. With --cut document each\n"
    "document is a sequence from position 0 on, and with --standalone each chunk is. The ids of\n"
    "standalone chunks depend on their tokens only. To read several together, attend each with\n"
    "its own --offset, and merge.\n"
    "\n"
    "--extend appends chunks to a corpus and leaves its others as they are. A file of rows whose\n"
    "base_position is where the corpus ends continues it; one that begins at 0 is a separate\n"
    "text, and so are tokens that are prefilled. Chunks that the corpus has are left out. Chunks\n"
    "are cut as in the corpus, unless you give --chunk-tokens. A text that it has in\n"
    "another cut is refused, and so is one that grew: load it with --replace.\n"
    "\n"
    "Rows go out as they are read, 8 chunks at a time. Chunks that a holder has already are not\n"
    "sent again. So run an interrupted load again: it continues. Texts and token ids are\n"
    "prefilled again each time, and for a dry run, too: that time grows with the square of a\n"
    "sequence. The corpus is published when every chunk is whole on all its holders.";

struct LoadOptions {
  std::string name;
  std::vector<std::string> files;
  bool text = false;
  bool jsonl = false;
  NpyOptions npy;
  std::string cut_name = "fixed";
  CutOptions cut;
  uint32_t replicas = 0;  // if 0, as many as the previous version has, or 1
  bool replace = false;
  bool extend = false;
  bool dry_run = false;
  bool reject_non_finite = false;
  PolicyOptions policy;
  uint32_t max_tokens = 0;
  uint32_t threads = UsableProcessors();
};

bool EndsWith(const std::string& path, std::string_view suffix) {
  return path.size() > suffix.size() && std::string_view(path).ends_with(suffix);
}

enum class InputKind { kRows, kNpy, kLlama, kText, kTokens };

absl::StatusOr<InputKind> KindOf(const LoadOptions& options) {
  if (options.text && options.jsonl) {
    return absl::InvalidArgumentError("--text and --jsonl: a file is one or the other");
  }
  if (options.text) return InputKind::kText;
  if (options.jsonl) return InputKind::kTokens;
  const auto count = [&](std::string_view suffix) {
    return static_cast<size_t>(
        std::count_if(options.files.begin(), options.files.end(),
                      [&](const std::string& file) { return EndsWith(file, suffix); }));
  };
  const size_t lines = count(".jsonl"), arrays = count(".npy");
  // The file of a llama-server slot may have any name.
  const auto states = static_cast<size_t>(std::count_if(
      options.files.begin(), options.files.end(),
      [](const std::string& file) { return EndsWith(file, ".ggsq") || LlamaState::IsOne(file); }));
  if (lines == 0 && arrays == 0 && states == 0) return InputKind::kRows;
  if (lines == options.files.size()) return InputKind::kTokens;
  if (states == options.files.size()) return InputKind::kLlama;
  if (arrays == 1 && options.files.size() == 1) return InputKind::kNpy;
  return absl::InvalidArgumentError(
      arrays > 0 ? "a .npy file is loaded by itself: it has one --token-ids and one position"
                 : "files of one kind at a time: all .jsonl, all sequence states, or none");
}

absl::Status CheckRowOptions(const NpyOptions& npy, InputKind kind) {
  const bool of_array = !npy.dtype.empty() || npy.base_position != 0;
  const bool of_both = !npy.geometry.empty() || !npy.token_ids.empty() || !npy.extra_keys.empty();
  if (kind == InputKind::kNpy || (!of_array && !of_both)) return absl::OkStatus();
  if (kind == InputKind::kLlama && !of_array) return absl::OkStatus();
  return absl::InvalidArgumentError(
      kind == InputKind::kLlama
          ? "--dtype and --base-position are for a .npy file\n  a sequence state contains both"
          : "--dtype and --base-position are for a .npy file; --geometry, --token-ids and "
            "--extra-keys for one or for a sequence state\n  files of rows contain all of it, and "
            "tokens have the reference engine's");
}

// A pipe is read once, from its beginning to its end. Rows are read chunk by chunk, anywhere in the
// file, and more than once.
absl::Status CheckStdin(const LoadOptions& options, InputKind kind) {
  const auto count = std::count(options.files.begin(), options.files.end(), kStdinPath);
  if (count > 1) return absl::InvalidArgumentError("-: stdin can be read once");
  if (count == 0 || kind == InputKind::kText || kind == InputKind::kTokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "-: stdin must be lines of token ids or a text: pass --jsonl or --text\n  rows are read "
      "chunk by "
      "chunk, so they need a regular file");
}

absl::Status CheckOptions(const LoadOptions& options, InputKind kind) {
  // Refuses before the prefill what the directory would refuse at the end.
  if (options.name.empty()) return absl::InvalidArgumentError("NAME: a corpus needs a name");
  CKV_RETURN_IF_ERROR(ValidateName("NAME", options.name));
  if (options.replace && options.extend) {
    return absl::InvalidArgumentError(
        "--replace and --extend: a corpus gets other chunks, or more of them");
  }
  if (options.extend && PolicyFrom(options.policy) != CorpusPolicy()) {
    return absl::InvalidArgumentError(
        "--extend: --ttl, --quota and --keep-versions are set by ckvctl corpus set");
  }
  CKV_RETURN_IF_ERROR(ValidateCut(options.cut));
  CKV_RETURN_IF_ERROR(CheckStdin(options, kind));
  CKV_RETURN_IF_ERROR(CheckRowOptions(options.npy, kind));
  if (kind == InputKind::kText && options.files.size() != 1 &&
      options.cut.policy != CutPolicy::kDocument) {
    return absl::InvalidArgumentError(
        "--text takes one file: a corpus is one text\n  with --cut document each is one by itself");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ChunkSource>> Prefill(const Ctl& ctl, const LoadOptions& options,
                                                     InputKind kind) {
  CKV_ASSIGN_OR_RETURN(std::shared_ptr<const Engine> engine, ReferenceEngine::Create({}));
  CKV_ASSIGN_OR_RETURN(
      TokenDocuments documents,
      kind == InputKind::kText
          ? ReadTexts(options.files, options.max_tokens)
          : ReadTokenLines(options.files, engine->vocabulary(), options.max_tokens));
  CutOptions cut = options.cut;
  if (cut.policy == CutPolicy::kFixed && cut.chunk_tokens == 0) {
    cut.chunk_tokens = kPrefillChunkTokens;
  }
  if (cut.policy == CutPolicy::kDocument || cut.standalone) {
    // Prefills one document at a time, before its chunks are put. The puts show the progress.
    return OpenPrefill(std::move(engine), std::move(documents), cut, options.threads, nullptr);
  }
  const auto progress =
      ctl.StartProgress("prefill", "tokens", documents.tokens.size(), /*quadratic=*/true);
  // Prefills everything in this call, so the source does not use `progress` later.
  return OpenPrefill(std::move(engine), std::move(documents), cut, options.threads,
                     [progress = progress.get()](uint64_t tokens) { progress->Advance(tokens); });
}

// Standalone rows are one chunk a file.
CutOptions RowCut(CutOptions cut) {
  if (cut.policy == CutPolicy::kFixed && cut.chunk_tokens == 0 && !cut.standalone)
    cut.chunk_tokens = kRowChunkTokens;
  return cut;
}

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenSource(const Ctl& ctl, const LoadOptions& options,
                                                        InputKind kind) {
  if (kind == InputKind::kRows)
    return OpenRowFiles(options.files, RowCut(options.cut), options.max_tokens);
  if (kind == InputKind::kNpy) {
    return OpenNpyRows(options.files[0], options.npy, RowCut(options.cut), options.max_tokens);
  }
  if (kind == InputKind::kLlama) {
    return OpenLlamaStates(options.files,
                           {options.npy.geometry, options.npy.token_ids, options.npy.extra_keys},
                           RowCut(options.cut), options.max_tokens);
  }
  return Prefill(ctl, options, kind);
}

// The corpus that this load replaces or extends, if there is one.
absl::StatusOr<std::optional<Corpus>> Previous(Fleet& fleet, const LoadOptions& options) {
  const std::string& tenant = fleet.options().tenant;
  absl::StatusOr<Corpus> existing = fleet.GetCorpus(options.name);
  if (absl::IsNotFound(existing.status())) {
    if (!options.extend) return std::nullopt;
    return absl::NotFoundError(
        absl::StrFormat("%s\n  without --extend the load makes it", existing.status().message()));
  }
  // A corpus that is not proven to be complete is Unavailable. With --replace it counts as absent.
  if (options.replace && absl::IsUnavailable(existing.status())) return std::nullopt;
  if (!existing.ok()) return existing.status();
  // A tenant can also read a shared corpus. A load makes one of its own, which hides the shared
  // one.
  if (existing->tenant != tenant && !options.extend) {
    if (options.replace) return std::nullopt;
    return absl::AlreadyExistsError(absl::StrFormat(
        "corpus %s exists, and is shared: tenant '%s' reads it\n  --replace makes a separate "
        "corpus that the tenant then reads instead; without --tenant, the command is about the "
        "shared one",
        options.name, tenant));
  }
  if (!options.replace && !options.extend) {
    return absl::AlreadyExistsError(
        absl::StrFormat("corpus %s exists (version %d)\n  --replace publishes a new version of it, "
                        "--extend appends to it",
                        options.name, existing->version));
  }
  return *std::move(existing);
}

// A tenant can also read shared corpora, but chunks that it puts there would have ids of its own
// key.
absl::Status CheckTenant(const Ctl& ctl, const Corpus& corpus) {
  if (corpus.tenant == ctl.fleet.tenant) return absl::OkStatus();
  return absl::NotFoundError(absl::StrFormat(
      "tenant '%s' has no corpus %s: the one that it reads is shared\n  without --tenant the "
      "shared one is extended",
      ctl.fleet.tenant, corpus.name));
}

// Returns the number of copies: for a new version, that of the previous one; for appended chunks,
// that of the last chunk. There are no more copies than holders.
uint32_t ReplicasOf(const Ctl& ctl, const LoadOptions& options,
                    const std::optional<Corpus>& previous, size_t holder_count) {
  const size_t copies = previous ? std::max<size_t>(1, previous->replica_count) : 1;
  if (copies > holder_count) {
    ctl.Note(absl::StrFormat(
        "ckvctl: warning: %d copies of each %schunk become %d: there are no more holders", copies,
        options.extend ? "new " : "", holder_count));
  }
  return static_cast<uint32_t>(std::clamp<size_t>(copies, 1, holder_count));
}

// Cuts an extension like the corpus, so that chunks which the corpus already has are found.
void TakeCutOf(const Corpus& corpus, InputKind kind, CutOptions& cut) {
  const bool prefills = kind == InputKind::kText || kind == InputKind::kTokens;
  if (cut.policy != CutPolicy::kFixed || cut.chunk_tokens != 0) return;
  if (cut.standalone && !prefills) return;  // one chunk a file
  cut.chunk_tokens =
      ChunkTokensOf(corpus, cut.standalone, prefills ? kPrefillChunkTokens : kRowChunkTokens);
}

// Checks for space before the prefill, which may take minutes.
absl::Status CheckCapacity(const Ctl& ctl, const LoadOptions& options, const ChunkSource& chunks,
                           const std::vector<Member>& holders) {
  if (!options.extend) return PlaceAll(chunks, holders, options.replicas, *ctl.clock).status();
  CKV_ASSIGN_OR_RETURN(const std::vector<uint32_t> fresh, NewToCorpus(options.cut, chunks));
  return PlaceByCapacity(chunks, fresh, options.cut.extended->chunks.size(), holders,
                         options.replicas, *ctl.clock, kInstantMax)
      .status();
}

// Refuses before the first row is sent what the directory would refuse at the end.
absl::Status CheckQuotaOf(const LoadOptions& options, const ChunkSource& source,
                          const Corpus* before) {
  const CorpusPolicy inherited = before != nullptr ? before->policy : CorpusPolicy();
  const uint64_t quota =
      PolicyFrom(options.policy).quota_bytes.value_or(inherited.quota_bytes.value_or(0));
  uint64_t bytes = source.row_bytes();
  if (options.extend) {
    absl::flat_hash_set<ChunkId> there;
    for (const ChunkPlacement& chunk : before->chunks) there.insert(chunk.id);
    bytes = before->row_bytes();
    for (const PlannedChunk& chunk : source.chunks()) {
      if (!there.contains(chunk.id)) bytes += chunk.token_count * source.geometry().token_bytes();
    }
  }
  return CheckQuota(options.name, bytes, quota);
}

absl::Status RunLoad(const Ctl& ctl, LoadOptions options) {
  const Instant start = ctl.clock->Now();
  CKV_ASSIGN_OR_RETURN(const InputKind kind, KindOf(options));
  CKV_RETURN_IF_ERROR(CheckOptions(options, kind));
  const bool prefills = kind == InputKind::kText || kind == InputKind::kTokens;
  const OnInterrupt on_interrupt([&ctl, prefills] {
    ctl.Note(prefills
                 ? "\nckvctl: interrupted; the same command prefills from the start again, and "
                   "reuses the chunks that were put"
                 : "\nckvctl: interrupted; run the same command again to go on");
  });
  Fleet fleet(ctl.fleet, ctl.clock);
  // Queried before the prefill, so that what cannot be published is refused in a second.
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> holders, fleet.Holders());
  CKV_ASSIGN_OR_RETURN(const std::optional<Corpus> previous, Previous(fleet, options));
  if (options.extend) {
    CKV_RETURN_IF_ERROR(CheckTenant(ctl, *previous));
    TakeCutOf(*previous, kind, options.cut);
    options.cut.extended = &*previous;
    options.cut.read_tokens =
        QueryHolders(holders, previous->geometry, ctl.fleet.tenant, ctl.clock, kInstantMax);
  }
  if (options.replicas == 0) options.replicas = ReplicasOf(ctl, options, previous, holders.size());
  CKV_RETURN_IF_ERROR(
      Annotate(PlaceChunks(1, UndrainedIdsOf(holders), options.replicas).status(), "--replicas"));

  CKV_ASSIGN_OR_RETURN(options.cut.key, fleet.KeyOfTenant(/*make=*/!options.dry_run));
  options.cut.before_prefill = [&](const ChunkSource& chunks) {
    return CheckCapacity(ctl, options, chunks, holders);
  };
  CKV_ASSIGN_OR_RETURN(const std::unique_ptr<ChunkSource> source, OpenSource(ctl, options, kind));
  FiniteCheck checked(*source, options.reject_non_finite);
  const Corpus* const before = previous ? &*previous : nullptr;
  CKV_ASSIGN_OR_RETURN(const std::vector<bool> shared,
                       FindShared(fleet, options.name, *source, before));
  const LoadTarget target = {options.name, options.replicas, options.replace, options.dry_run,
                             PolicyFrom(options.policy)};
  CKV_RETURN_IF_ERROR(CheckQuotaOf(options, *source, before));
  absl::StatusOr<Loaded> loaded =
      options.extend ? PutAndExtend(ctl, target, fleet, checked, holders, options.cut)
                     : PutAndPublish(ctl, target, fleet, checked, holders);
  if (const std::string warning = checked.Warning(); !warning.empty()) {
    ctl.Note("ckvctl: warning: " + warning);
  }
  CKV_RETURN_IF_ERROR(loaded.status());
  loaded->put.found.resize(source->chunks().size());  // empty if nothing was put
  const LoadReport report = {.corpus = options.name,
                             .version = loaded->version,
                             .dry_run = options.dry_run,
                             .replicas = options.replicas,
                             .chunk_begin = loaded->chunk_begin,
                             .appended = loaded->appended,
                             .origins = CountOrigins(*source, before, shared, loaded->put.found),
                             .tallies = loaded->put.tallies,
                             .elapsed = ctl.clock->Now() - start};
  PrintReport(ctl, *source, report);
  return absl::OkStatus();
}

void AddCutOptions(CLI::App& verb, LoadOptions& options) {
  const std::vector<std::string> policies = {"fixed", "document", "content"};
  verb.add_option("--cut", options.cut_name, "Rule for where chunks end")
      ->capture_default_str()
      ->check(OneOf(policies))
      ->type_name(JoinNames(policies));
  verb.add_option("--chunk-tokens", options.cut.chunk_tokens,
                  absl::StrFormat("Tokens a chunk (default: %d of rows, %d of tokens that are "
                                  "prefilled; with --extend, those of the corpus); with --cut "
                                  "content their average, a power of two (default: 2048)",
                                  kRowChunkTokens, kPrefillChunkTokens))
      ->check(InRange(1u, kChunkTokenCountMax));
  verb.add_option("--chunk-min", options.cut.chunk_min,
                  "Fewest tokens a chunk with --cut content (default: a quarter of the average)")
      ->check(InRange(1u, kChunkTokenCountMax));
  verb.add_option("--chunk-max", options.cut.chunk_max,
                  "Most tokens a chunk with --cut content (default: four times the average) or "
                  "document (default: 8192)")
      ->check(InRange(1u, kChunkTokenCountMax));
  verb.add_flag("--standalone", options.cut.standalone,
                "Every chunk by itself: no parent, and rows as of position 0");
}

void AddInputOptions(CLI::App& verb, LoadOptions& options) {
  verb.add_flag("--text", options.text,
                "FILE is a text: prefill it with the reference engine, a token a byte");
  verb.add_flag("--jsonl", options.jsonl, "FILE has token ids, whatever its name ends in");
  verb.add_option("--dtype", options.npy.dtype, "Type of the elements of a .npy file")
      ->type_name("bf16|f16|f32|fp8_ds_mla")
      ->check(OneOf({"bf16", "f16", "f32", "fp8_ds_mla"}));
  verb.add_option(
          "--geometry", options.npy.geometry,
          "Geometry of a .npy file or a sequence state: a JSON file with the keys model, revision, "
          "layers, d_qk, d_v, d_rope, dtype (bf16 or fp8_ds_mla), rope_style, rope_theta, "
          "softmax_scale, yarn")
      ->type_name("FILE");
  verb.add_option(
          "--token-ids", options.npy.token_ids,
          "Token ids of a .npy file, or of a sequence state without any: a .npy file of i4, "
          "i8, u4 or u8 [T]")
      ->type_name("FILE");
  verb.add_option("--extra-keys", options.npy.extra_keys,
                  "Extra keys of a .npy file or a sequence state: a JSON file")
      ->type_name("FILE");
  verb.add_option("--base-position", options.npy.base_position,
                  "Position of the first token of a .npy file (default: 0)")
      ->check(WholeNumber());
  verb.add_option("--max-tokens", options.max_tokens, "Take only so many tokens")
      ->check(InRange(1u, kRowFileTokenCountMax));
  verb.add_option("--threads", options.threads, "Threads of the prefill")
      ->capture_default_str()
      ->check(InRange(1u, WorkerPool::kThreadCountMax));
}

}  // namespace

void AddCorpusLoadCommand(CLI::App& corpus, Ctl& ctl) {
  const auto options = std::make_shared<LoadOptions>();
  CLI::App* verb =
      AddVerb(corpus, "load", "Put chunks on holders and publish them as a corpus", kExamples);
  verb->add_option("NAME", options->name, "The corpus")->required();
  verb->add_option("FILE", options->files, "Rows, token ids or texts, in order")->required();
  AddInputOptions(*verb, *options);
  AddCutOptions(*verb, *options);
  verb->add_option(
          "--replicas", options->replicas,
          "Copies of each chunk (default: 1; with --replace or --extend, as many as it has)")
      ->check(InRange(1u, kReplicaCountMax));
  verb->add_flag("--replace", options->replace, "Publish a new version of an existing corpus");
  verb->add_flag("--extend", options->extend, "Append the chunks to an existing corpus");
  AddPolicyOptions(*verb, options->policy);
  verb->add_flag(
      "--reject-non-finite", options->reject_non_finite,
      "Refuse rows with NaN, infinite or too large values; by default they are a warning");
  verb->add_flag("--dry-run", options->dry_run,
                 "Read, prefill and cut everything and ask what is there, but put nothing");
  verb->callback([&ctl, options] {
    options->cut.policy = options->cut_name == "document"  ? CutPolicy::kDocument
                          : options->cut_name == "content" ? CutPolicy::kContent
                                                           : CutPolicy::kFixed;
    ctl.run = [&ctl, options] { return RunLoad(ctl, *options); };
  });
}

}  // namespace ckv::ctl
