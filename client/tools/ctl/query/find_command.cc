// ckvctl chunk find: which chunks a prompt has, at any position, and which tokens are in none.
// RunFind, in order: reads the prompt's tokens and extra keys; requests a search from the
// requester, by a corpus or in all; prints the chunks found and the gaps.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/corpus/npy_source.h"
#include "client/tools/ctl/corpus/token_lines.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "store/formats/npy.h"

namespace ckv::ctl {
namespace {

struct FindOptions {
  std::string file;
  bool text = false;
  bool jsonl = false;
  std::string corpus;
  std::string geometry_of;
  std::string extra_keys;
};

struct Prompt {
  std::vector<int32_t> tokens;
  ExtraKeys extra_keys;
};

absl::StatusOr<Prompt> ReadTokens(const FindOptions& options) {
  if (options.text && options.jsonl)
    return absl::InvalidArgumentError("--text and --jsonl: a file is one or the other");
  const std::string_view path = options.file;
  if (options.text) {
    CKV_ASSIGN_OR_RETURN(TokenDocuments texts, ReadTexts({options.file}, 0));
    return Prompt{std::move(texts.tokens), {}};
  }
  if (options.jsonl || path.ends_with(".jsonl")) {
    CKV_ASSIGN_OR_RETURN(TokenDocuments lines, ReadTokenLines({options.file}, kAnyVocabulary, 0));
    if (lines.documents.size() == 1)
      return Prompt{std::move(lines.tokens), std::move(lines.documents[0].extra_keys)};
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d lines, and a prompt is one", options.file, lines.documents.size()));
  }
  if (!path.ends_with(".npy")) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: pass --text or --jsonl, or name a .npy file of token ids", options.file));
  }
  CKV_ASSIGN_OR_RETURN(const NpyFile file, NpyFile::Open(options.file, FileReading::kParts));
  const uint64_t count = file.shape().size() == 1 ? file.shape()[0] : 0;
  CKV_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, ReadNpyTokenIds(options.file, count));
  return Prompt{std::move(tokens), {}};
}

absl::StatusOr<Prompt> ReadPrompt(const FindOptions& options) {
  CKV_ASSIGN_OR_RETURN(Prompt prompt, ReadTokens(options));
  if (options.extra_keys.empty()) return prompt;
  if (!prompt.extra_keys.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: already has extra keys\n  leave --extra-keys out", options.file));
  }
  CKV_ASSIGN_OR_RETURN(prompt.extra_keys,
                       ReadExtraKeysFile(options.extra_keys, prompt.tokens.size()));
  return prompt;
}

// Returns the chunks of one corpus that the prompt begins with, in the form of a search result.
v1::ResolveReply FromCorpus(const v1::ResolveReply& reply, size_t token_count) {
  v1::ResolveReply found;
  uint64_t end = 0;
  for (const v1::ChunkPlacement& chunk : reply.corpus().chunks()) {
    v1::PromptSpan& span = *found.add_spans();
    span.set_token_begin(end);
    span.set_token_count(chunk.token_count());
    span.mutable_chunk()->set_id(chunk.id());
    span.mutable_chunk()->set_offset(static_cast<int64_t>(end) -
                                     static_cast<int64_t>(chunk.position()));
    end += chunk.token_count();
  }
  found.set_token_count(end);
  *found.mutable_geometry() = reply.corpus().geometry();
  if (end < token_count) {
    found.add_gaps()->set_token_begin(end);
    found.mutable_gaps(0)->set_token_count(token_count - end);
  }
  return found;
}

absl::Status Print(const Ctl& ctl, const v1::ResolveReply& reply, size_t token_count) {
  Json json = {{"token_count", token_count},
               {"covered_token_count", reply.token_count()},
               {"model", reply.geometry().model()},
               {"truncated", reply.truncated()},
               {"spans", Json::array()},
               {"holes", Json::array()}};
  Table table({{"BEGIN", true}, {"TOKENS", true}, {"OFFSET", true}, {"CHUNK"}});
  int gap = 0;
  const auto add_gaps = [&](uint64_t until) {
    for (; gap < reply.gaps_size() && reply.gaps(gap).token_begin() < until; ++gap) {
      const v1::PromptGap& one = reply.gaps(gap);
      table.AddRow(
          {std::to_string(one.token_begin()), std::to_string(one.token_count()), "-", "none"});
      json["holes"].push_back(
          {{"token_begin", one.token_begin()}, {"token_count", one.token_count()}});
    }
  };
  for (const v1::PromptSpan& span : reply.spans()) {
    CKV_ASSIGN_OR_RETURN(const ChunkId id, ChunkId::FromBytes(span.chunk().id()));
    add_gaps(span.token_begin());
    table.AddRow({std::to_string(span.token_begin()), std::to_string(span.token_count()),
                  std::to_string(span.chunk().offset()), id.ShortHex()});
    json["spans"].push_back({{"token_begin", span.token_begin()},
                             {"token_count", span.token_count()},
                             {"chunk", id.ToHex()},
                             {"offset", span.chunk().offset()}});
  }
  add_gaps(UINT64_MAX);
  std::string text = absl::StrFormat("%d of %d tokens are in %s\n\n", reply.token_count(),
                                     token_count, FormatCount(reply.spans_size(), "chunk")) +
                     table.Render();
  if (reply.truncated())
    text += "\nmore chunks begin so than the directory lists: others may cover more\n";
  ctl.Print(text, json);
  return absl::OkStatus();
}

absl::Status RunFind(const Ctl& ctl, const FindOptions& options) {
  if (!options.corpus.empty() && !options.geometry_of.empty())
    return absl::InvalidArgumentError("--corpus and --geometry-of: a corpus has one geometry");
  CKV_ASSIGN_OR_RETURN(const Prompt prompt, ReadPrompt(options));
  const std::vector<int32_t>& tokens = prompt.tokens;
  Fleet fleet(ctl.fleet, ctl.clock);
  v1::ResolveRequest request;
  request.set_token_ids(Int32sToBytes(tokens));
  for (const ExtraKey& key : prompt.extra_keys) {
    v1::ExtraKey& message = *request.add_extra_keys();
    message.set_begin(key.begin);
    message.set_token_count(key.token_count);
    message.set_digest(key.digest);
  }
  request.set_tenant(ctl.fleet.tenant);
  request.set_corpus_hint(options.corpus);
  request.set_geometry_of(options.geometry_of);
  grpc::ClientContext context;
  fleet.Prepare(context);
  v1::ResolveReply reply;
  CKV_RETURN_IF_ERROR(
      fleet.RequesterError(fleet.requester().Resolve(&context, request, &reply), "Resolve"));
  return Print(ctl, options.corpus.empty() ? reply : FromCorpus(reply, tokens.size()),
               tokens.size());
}

}  // namespace

void AddChunkFindCommand(CLI::App& chunk, Ctl& ctl) {
  const auto options = std::make_shared<FindOptions>();
  CLI::App* verb =
      AddVerb(chunk, "find", "Show which chunks a prompt has, and which tokens are in none",
              "  ckvctl chunk find prompt.npy\n"
              "  ckvctl chunk find question.txt --text -o json\n"
              "  head -1 prompts.jsonl | ckvctl chunk find - --jsonl --tenant acme\n\n"
              "FILE is a .npy file of i4, i8, u4 or u8 [T]; or a FILE.jsonl with one line, as\n"
              "ckvctl corpus load reads it; or with --text a text, a token a byte.\n\n"
              "Chunks of all corpora that the tenant may read are found, at any position.\n"
              "A chunk of a chain is found behind the chunk before it. The chunks shown are\n"
              "those that cover most tokens. OFFSET is what ckvctl attend --offset takes to put\n"
              "a chunk there.\n\n"
              "A chunk that was put with extra keys is found only with the same keys: those of\n"
              "the line, or of --extra-keys.\n\n"
              "Chunks of fewer than 16 tokens are not found. Corpora that an earlier ckvctl\n"
              "loaded are found with --corpus only, until they are loaded again.");
  verb->add_option("FILE", options->file, "The prompt's token ids; - is stdin")->required();
  verb->add_flag("--text", options->text, "FILE is a text, a token a byte");
  verb->add_flag("--jsonl", options->jsonl, "FILE has token ids, whatever its name ends in");
  verb->add_option("--corpus", options->corpus,
                   "Show the chunks of this corpus that the prompt begins with")
      ->type_name("NAME");
  verb->add_option("--geometry-of", options->geometry_of,
                   "Find chunks of this corpus' model only (default: all are of one)")
      ->type_name("NAME");
  verb->add_option("--extra-keys", options->extra_keys,
                   "Pictures, sounds and adapters of the prompt: a JSON file, as for corpus load")
      ->type_name("FILE");
  verb->callback([&ctl, options] { ctl.run = [&ctl, options] { return RunFind(ctl, *options); }; });
}

}  // namespace ckv::ctl
