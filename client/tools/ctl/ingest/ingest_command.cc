// ckvctl corpus ingest: a running engine prefills documents and publishes them as a corpus.
// Ingest::Run, in order: reads the engine's model; ReadPieces tokenizes the documents and cuts
// those that are too long; Look reads the chunks that the corpus has; pieces that are not covered
// are prefilled one after another, and each is awaited until the corpus has its chunks.

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/corpus/token_lines.h"
#include "client/tools/ctl/ingest/chunk_chains.h"
#include "client/tools/ctl/ingest/engine_client.h"
#include "proto/base/status.h"
#include "proto/utf8.h"

namespace ckv::ctl {
namespace {

// A text is sent to the engine whole.
constexpr uint64_t kTextBytesMax = uint64_t{64} << 20;
// How often to check whether a prefilled text is published: a put takes 20 ms and more.
constexpr Duration kLookAgain = std::chrono::milliseconds(250);

struct IngestOptions {
  std::string name;
  std::vector<std::string> files;
  std::string engine;
  std::string model;
  bool jsonl = false;
  uint32_t piece_tokens = 0;  // if 0, as many as the engine takes
  uint32_t timeout_s = 600;
  bool dry_run = false;
};

// A document, or a part of one that is longer than a request of the engine.
struct Piece {
  std::string origin;
  std::vector<int32_t> tokens;
};

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(path + ": no such file, or it cannot be read");
  std::ostringstream read;
  read << file.rdbuf();
  std::string text = std::move(read).str();
  if (text.empty()) return absl::InvalidArgumentError(path + ": is empty");
  if (text.size() > kTextBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes, and a text is at most %d: cut it into several files", path,
                        text.size(), kTextBytesMax));
  }
  for (std::string_view left = text; !left.empty();) {
    const Utf8Character character = FirstCharacterOf(left);
    if (!character.valid) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: byte %d is no UTF-8, as the engine's tokenizer takes it", path,
                          text.size() - left.size()));
    }
    left.remove_prefix(character.byte_count);
  }
  return text;
}

void AddPieces(std::string_view origin, std::span<const int32_t> tokens, uint32_t size,
               std::vector<Piece>& pieces) {
  for (size_t begin = 0; begin < tokens.size(); begin += size) {
    const auto some = tokens.subspan(begin, std::min<size_t>(size, tokens.size() - begin));
    pieces.push_back({std::string(origin), {some.begin(), some.end()}});
    if (tokens.size() > size) absl::StrAppendFormat(&pieces.back().origin, ", token %d", begin);
  }
}

absl::StatusOr<std::vector<Piece>> ReadPieces(const IngestOptions& options,
                                              const EngineClient& engine, const EngineModel& model,
                                              uint32_t size) {
  std::vector<Piece> pieces;
  for (const std::string& path : options.files) {
    if (options.jsonl || path.ends_with(".jsonl")) {
      CKV_ASSIGN_OR_RETURN(const TokenDocuments lines, ReadTokenLines({path}, kAnyVocabulary, 0));
      for (size_t i = 0; i < lines.documents.size(); ++i) {
        if (!lines.documents[i].extra_keys.empty()) {
          return absl::InvalidArgumentError(
              lines.documents[i].origin +
              ": extra keys: an engine prefills tokens, and pictures are not among them");
        }
        AddPieces(lines.documents[i].origin, lines.of(i), size, pieces);
      }
      continue;
    }
    CKV_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
    CKV_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, engine.Tokenize(model, text));
    AddPieces(path, tokens, size, pieces);
  }
  return pieces;
}

class Ingest {
 public:
  Ingest(const Ctl& ctl, const IngestOptions& options, const EngineClient& engine)
      : ctl_(ctl), options_(options), engine_(engine), fleet_(ctl.fleet, ctl.clock) {}

  absl::Status Run() {
    CKV_ASSIGN_OR_RETURN(const EngineModel model, engine_.Model(options_.model));
    // One token of each request is the answer's.
    uint32_t size = model.token_count_max > 1 ? model.token_count_max - 1 : UINT32_MAX;
    if (options_.piece_tokens > 0) size = std::min(size, options_.piece_tokens);
    CKV_ASSIGN_OR_RETURN(const std::vector<Piece> pieces,
                         ReadPieces(options_, engine_, model, size));
    for (const Piece& piece : pieces) total_ += piece.tokens.size();
    CKV_ASSIGN_OR_RETURN(const ChunkChains before, Look());
    const Instant begun = ctl_.clock->Now();
    {
      const auto progress = ctl_.StartProgress("prefill", "tokens", total_);
      for (const Piece& piece : pieces) {
        const bool is_there = Has(before, piece);
        if (is_there || options_.dry_run) {
          if (is_there) there_ += piece.tokens.size();
          progress->Skip(piece.tokens.size());
          continue;
        }
        CKV_RETURN_IF_ERROR(engine_.Prefill(model, piece.tokens, options_.name));
        CKV_RETURN_IF_ERROR(AwaitPublished(piece));
        progress->Advance(piece.tokens.size());
      }
    }
    Report(pieces, model, ctl_.clock->Now() - begun);
    return absl::OkStatus();
  }

 private:
  // Returns the corpus' chunks as they are now; the directory sends all of them.
  absl::StatusOr<ChunkChains> Look() {
    const absl::StatusOr<Corpus> corpus = fleet_.GetCorpus(options_.name);
    if (absl::IsNotFound(corpus.status())) return ChunkChains();
    CKV_RETURN_IF_ERROR(corpus.status());
    if (corpus->tenant != ctl_.fleet.tenant) return ChunkChains();  // the shared one of that name
    // Queried here each time: the first chunk that is put for a tenant creates its key.
    CKV_ASSIGN_OR_RETURN(const TenantKey key, fleet_.KeyOfTenant(/*make=*/false));
    return ChunkChains(*corpus, key);
  }

  static bool Has(const ChunkChains& chains, const Piece& piece) {
    return chains.MatchedTokens(piece.tokens) == piece.tokens.size();
  }

  absl::Status AwaitPublished(const Piece& piece) {
    const Instant deadline = ctl_.clock->Now() + std::chrono::seconds(options_.timeout_s);
    while (true) {
      CKV_ASSIGN_OR_RETURN(const ChunkChains now, Look());
      if (Has(now, piece)) return absl::OkStatus();
      if (ctl_.clock->Now() >= deadline) break;
      ctl_.clock->WaitUntil(ctl_.clock->Now() + kLookAgain);
    }
    return absl::DeadlineExceededError(absl::StrFormat(
        "%s: the engine prefilled it, and corpus %s does not have it after %d s\n  the engine's "
        "log has the reason why it was not published; its directory and tenant must be those of "
        "this command",
        piece.origin, options_.name, options_.timeout_s));
  }

  void Report(const std::vector<Piece>& pieces, const EngineModel& model, Duration took) const {
    const uint64_t done = options_.dry_run ? 0 : total_ - there_;
    const double seconds = std::chrono::duration<double>(took).count();
    const std::string what = FormatCount(pieces.size(), "document or part of one");
    ctl_.Print(
        options_.dry_run
            ? absl::StrFormat("corpus %s has %d of %d tokens of %s\n", options_.name, there_,
                              total_, what)
            : absl::StrFormat("corpus %s has all %d tokens of %s; %s prefilled %d of them in %.1f "
                              "s, %d were there\n",
                              options_.name, total_, what, model.name, done, seconds, there_),
        {{"corpus", options_.name},
         {"model", model.name},
         {"pieces", pieces.size()},
         {"token_count", total_},
         {"prefilled_token_count", done},
         {"present_token_count", there_},
         {"seconds", seconds}});
  }

  const Ctl& ctl_;
  const IngestOptions& options_;
  const EngineClient& engine_;
  Fleet fleet_;
  uint64_t total_ = 0;  // tokens
  uint64_t there_ = 0;  // those that were there before
};

absl::Status RunIngest(const Ctl& ctl, const IngestOptions& options) {
  CKV_RETURN_IF_ERROR(ValidateName("NAME", options.name));
  const char* const key = std::getenv("VLLM_API_KEY");
  std::string url = options.engine;
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  const bool is_http = url.starts_with("http://") || url.starts_with("https://");
  if (!is_http) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--engine %s: no address of an engine\n  it is http://HOST:PORT", options.engine));
  }
  const EngineClient engine({.url = url,
                             .api_key = key == nullptr ? "" : key,
                             .timeout = std::chrono::seconds(options.timeout_s)});
  return Ingest(ctl, options, engine).Run();
}

constexpr char kIngestExamples[] =
    "  ckvctl corpus ingest law statutes.txt cases.txt --engine http://gpu1:8000\n"
    "  ckvctl corpus ingest code tokens.jsonl --engine http://gpu1:8000 --dry-run\n\n"
    "A running vLLM with the plug-in of ckv prefills the documents, and publishes their rows.\n"
    "FILE is a text, which the engine's own tokenizer cuts into tokens, or a FILE.jsonl: one\n"
    "document a line, [ids] or {\"token_ids\": [ids]}. Each document is a sequence of its own,\n"
    "from position 0 on. One that is longer than a request may be is cut into several.\n\n"
    "A document is done once the corpus has all of its tokens. Documents that it has already\n"
    "are not prefilled again, so run an interrupted command again: it continues.\n\n"
    "VLLM_API_KEY in the environment is sent as the engine's key.";

}  // namespace

void AddCorpusIngestCommand(CLI::App& corpus, Ctl& ctl) {
  const auto options = std::make_shared<IngestOptions>();
  CLI::App* verb =
      AddVerb(corpus, "ingest", "Have a serving engine prefill documents and publish them",
              kIngestExamples);
  verb->add_option("NAME", options->name, "The corpus")->required();
  verb->add_option("FILE", options->files, "Texts or token ids, in order")->required();
  verb->add_option("--engine", options->engine, "The engine's HTTP address, as http://gpu1:8000")
      ->type_name("URL")
      ->required()
      ->check(NotEmpty());
  verb->add_option("--model", options->model, "The model, of an engine that serves several")
      ->type_name("NAME");
  verb->add_flag("--jsonl", options->jsonl, "FILE has token ids, whatever its name ends in");
  verb->add_option("--piece-tokens", options->piece_tokens,
                   "Most tokens of one request (default: what the engine takes)")
      ->check(InRange(16u, 1u << 24));
  verb->add_option("--engine-timeout", options->timeout_s,
                   "Seconds that one document may take to be prefilled, and then to be published")
      ->capture_default_str()
      ->check(InRange(1u, 86400u));
  verb->add_flag("--dry-run", options->dry_run, "Show which documents the corpus has already");
  verb->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunIngest(ctl, *options); }; });
}

}  // namespace ckv::ctl
