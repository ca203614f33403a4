#include "client/ctl/corpus/token_lines.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "store/formats/import.h"
#include "store/formats/json.h"

namespace ckv::ctl {
namespace {

constexpr int kLineDepthMax = 8;  // depth of what an exporter writes beside token_ids

absl::StatusOr<std::ifstream> OpenText(const std::string& path) {
  struct stat about;
  if (stat(path.c_str(), &about) != 0) {
    return absl::NotFoundError(absl::StrFormat("%s: no such file", path));
  }
  std::ifstream in(path, std::ios::binary);
  if (S_ISDIR(about.st_mode) || !in) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: cannot be read as a file", path));
  }
  return in;
}

// Reads up to the next newline; false at the end of the file.
absl::StatusOr<bool> ReadLine(std::ifstream& in, std::string& line) {
  using Traits = std::ifstream::traits_type;
  line.clear();
  std::streambuf& buffer = *in.rdbuf();
  int c = buffer.sbumpc();
  if (c == Traits::eof()) return false;
  for (; c != Traits::eof() && c != '\n'; c = buffer.sbumpc()) {
    if (line.size() == kTokenLineBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a line of more than %d bytes", kTokenLineBytesMax));
    }
    line.push_back(static_cast<char>(c));
  }
  return true;
}

// Appends the ids of one line, but no more than `room`.
absl::Status ParseLine(const std::string& line, uint32_t vocabulary, uint64_t room,
                       std::vector<int32_t>& tokens) {
  CKV_ASSIGN_OR_RETURN(const nlohmann::json parsed, ParseJson(line, kLineDepthMax));
  const nlohmann::json* ids = &parsed;
  if (parsed.is_object()) {
    const auto found = parsed.find("token_ids");
    if (found == parsed.end()) return absl::InvalidArgumentError("the object has no token_ids");
    ids = &*found;
  }
  if (!ids->is_array()) {
    return absl::InvalidArgumentError(
        "must be an array of token ids, or an object with one as token_ids");
  }
  if (ids->empty()) return absl::InvalidArgumentError("a document without a token");
  for (size_t i = 0; i < ids->size(); ++i) {
    const nlohmann::json& id = (*ids)[i];
    // A number of more than 64 bits is a fraction to the parser.
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrFormat("token_ids[%d] must be a whole number from 0 to %d", i, vocabulary - 1));
    }
    if (i < room) tokens.push_back(static_cast<int32_t>(id.get<uint64_t>()));
  }
  return absl::OkStatus();
}

uint64_t LimitOf(uint32_t token_count_max) {
  return token_count_max == 0 ? uint64_t{kRowFileTokenCountMax} + 1 : token_count_max;
}

absl::Status CheckCount(const std::string& path, const std::vector<int32_t>& tokens) {
  if (tokens.size() <= kRowFileTokenCountMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: more than %d tokens\n  --max-tokens takes fewer", path, kRowFileTokenCountMax));
}

}  // namespace

std::span<const int32_t> TokenDocuments::of(size_t document) const {
  const size_t begin = documents[document].begin;
  const size_t end =
      document + 1 < documents.size() ? documents[document + 1].begin : tokens.size();
  return std::span(tokens).subspan(begin, end - begin);
}

absl::StatusOr<TokenDocuments> ReadTokenLines(const std::vector<std::string>& paths,
                                              uint32_t vocabulary, uint32_t token_count_max) {
  TokenDocuments result;
  const uint64_t limit = LimitOf(token_count_max);
  std::string line;
  for (const std::string& path : paths) {
    CKV_ASSIGN_OR_RETURN(std::ifstream in, OpenText(path));
    for (uint64_t number = 1; result.tokens.size() < limit; ++number) {
      const std::string origin = absl::StrFormat("%s:%d", path, number);
      const absl::StatusOr<bool> more = ReadLine(in, line);
      if (!more.ok()) return Annotate(more.status(), origin);
      if (!*more) break;
      const auto begin = static_cast<uint32_t>(result.tokens.size());
      CKV_RETURN_IF_ERROR(Annotate(
          ParseLine(line, vocabulary, limit - result.tokens.size(), result.tokens), origin));
      result.documents.push_back({begin, origin});
    }
    CKV_RETURN_IF_ERROR(CheckCount(path, result.tokens));
  }
  if (result.tokens.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: empty", paths.front()));
  }
  return result;
}

absl::StatusOr<TokenDocuments> ReadTexts(const std::vector<std::string>& paths,
                                         uint32_t token_count_max) {
  TokenDocuments result;
  for (const std::string& path : paths) {
    const uint64_t left = LimitOf(token_count_max) - result.tokens.size();
    if (left == 0) break;
    CKV_ASSIGN_OR_RETURN(
        const std::vector<int32_t> tokens,
        ReadTextTokens(path, token_count_max == 0 ? 0 : static_cast<uint32_t>(left)));
    result.documents.push_back({static_cast<uint32_t>(result.tokens.size()), path});
    result.tokens.insert(result.tokens.end(), tokens.begin(), tokens.end());
    CKV_RETURN_IF_ERROR(CheckCount(path, result.tokens));
  }
  return result;
}

absl::StatusOr<std::vector<int32_t>> ReadTextTokens(const std::string& path,
                                                    uint32_t token_count_max) {
  CKV_ASSIGN_OR_RETURN(std::ifstream in, OpenText(path));
  const uint64_t limit = LimitOf(token_count_max);
  std::vector<int32_t> tokens;
  for (int c = in.get(); c != std::ifstream::traits_type::eof() && tokens.size() < limit;
       c = in.get()) {
    tokens.push_back(c);
  }
  if (tokens.empty()) return absl::InvalidArgumentError(absl::StrFormat("%s: empty", path));
  CKV_RETURN_IF_ERROR(CheckCount(path, tokens));
  return tokens;
}

}  // namespace ckv::ctl
