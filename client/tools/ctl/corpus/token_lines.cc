// Reads token ids from JSONL lines, or from texts at one byte a token. TextFile reads a file or
// stdin in pieces. For each line: ReadLine, ParseLine, then its ids, origin and extra keys are
// appended until --max-tokens is reached. A file that changed meanwhile is refused.

#include "client/tools/ctl/corpus/token_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/token_id.h"
#include "store/formats/extra_keys_json.h"
#include "store/formats/import.h"
#include "store/formats/json.h"

namespace ckv::ctl {
namespace {

constexpr int kLineDepthMax = 8;  // depth of what an exporter writes besides token_ids

constexpr size_t kReadBytes = 64 << 10;  // a pipe holds as much

std::string NameOf(const std::string& path) { return path == kStdinPath ? "stdin" : path; }

// The bytes of a file from its beginning, or of stdin from its current position, to the end.
class TextFile {
 public:
  //   NotFound            no such file.
  //   InvalidArgument     it cannot be opened.
  static absl::StatusOr<TextFile> Open(const std::string& path) {
    // Uses the descriptor. Opening stdin by name would read it from the beginning, or fail (a
    // socket).
    if (path == kStdinPath) return TextFile(STDIN_FILENO);
    TextFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.fd_ >= 0 && fstat(file.fd_, &file.about_) == 0) return file;
    if (errno == ENOENT) return absl::NotFoundError(absl::StrFormat("%s: no such file", path));
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: cannot be read as a file: %s", path, std::strerror(errno)));
  }
  TextFile(TextFile&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), bytes_(std::move(other.bytes_)), about_(other.about_) {}
  ~TextFile() {
    if (fd_ > STDIN_FILENO) close(fd_);
  }

  // Returns the bytes that are not taken yet. Empty only at the end.
  //   InvalidArgument     they cannot be read: a folder, a terminal that hung up, a broken disk.
  absl::StatusOr<std::string_view> Peek() {
    if (taken_ < size_) return std::string_view(bytes_).substr(taken_, size_ - taken_);
    ssize_t got = -1;
    do {
      got = read(fd_, bytes_.data(), bytes_.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("cannot be read as a file: %s", std::strerror(errno)));
    }
    taken_ = 0;
    size_ = static_cast<size_t>(got);
    return std::string_view(bytes_).substr(0, size_);
  }
  void Take(size_t count) { taken_ += count; }
  // Refuses a file that was written while it was read: its text may be partly old and partly new.
  absl::Status CheckUnchanged() const {
    struct stat now = {};
    if (!S_ISREG(about_.st_mode) || fstat(fd_, &now) != 0) return absl::OkStatus();
    const auto same = [](const timespec& a, const timespec& b) {
      return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
    };
    if (now.st_size == about_.st_size && same(now.st_mtim, about_.st_mtim) &&
        same(now.st_ctim, about_.st_ctim)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "changed while it was read\n  run the command again when no process writes the file");
  }

 private:
  explicit TextFile(int fd) : fd_(fd), bytes_(kReadBytes, '\0') {}

  int fd_;
  std::string bytes_;
  struct stat about_ = {};       // when it was opened; of no kind for stdin
  size_t taken_ = 0, size_ = 0;  // bytes that were taken, and bytes that were read
};

// Reads up to the next newline; false at the end of the file.
absl::StatusOr<bool> ReadLine(TextFile& in, std::string& line) {
  line.clear();
  for (bool begun = false;; begun = true) {
    CKV_ASSIGN_OR_RETURN(const std::string_view bytes, in.Peek());
    if (bytes.empty()) return begun;
    const size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    if (line.size() + part.size() > kTokenLineBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a line of more than %d bytes", kTokenLineBytesMax));
    }
    line.append(part);
    in.Take(part.size() + (end == std::string_view::npos ? 0 : 1));
    if (end != std::string_view::npos) return true;
  }
}

// Longer values are cut short in errors.
constexpr size_t kNumberBytesMax = 32;

absl::StatusOr<int32_t> ParseId(const nlohmann::json& id, size_t index, uint32_t vocabulary) {
  // The parser returns a number of more than 64 bits as a fraction.
  if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t{kTokenIdMax}) {
    std::string text = id.is_primitive() ? id.dump() : std::string(id.type_name());
    if (text.size() > kNumberBytesMax) text.replace(kNumberBytesMax, text.npos, "...");
    return RefuseTokenId("token_ids", index, text);
  }
  const auto value = id.get<uint64_t>();
  if (value < vocabulary) return static_cast<int32_t>(value);
  return absl::InvalidArgumentError(absl::StrFormat(
      "token_ids[%d] is %d, and the model's ids are 0 to %d", index, value, vocabulary - 1));
}

// Appends the ids of one line, but no more than `count_max`.
absl::Status ParseLine(const std::string& line, uint32_t vocabulary, uint64_t count_max,
                       std::vector<int32_t>& tokens, ExtraKeys& extra_keys) {
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
    CKV_ASSIGN_OR_RETURN(const int32_t id, ParseId((*ids)[i], i, vocabulary));
    if (i < count_max) tokens.push_back(id);
  }
  if (!parsed.is_object() || !parsed.contains("extra_keys")) return absl::OkStatus();
  CKV_ASSIGN_OR_RETURN(extra_keys,
                       ParseExtraKeys(*parsed.find("extra_keys"), ids->size(), "extra_keys"));
  return absl::OkStatus();
}

uint64_t LimitOf(uint32_t token_count_max) {
  return token_count_max == 0 ? uint64_t{kRowFileTokenCountMax} + 1 : token_count_max;
}

absl::Status CheckCount(const std::string& path, const std::vector<int32_t>& tokens) {
  if (tokens.size() <= kRowFileTokenCountMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: more than %d tokens\n  --max-tokens takes fewer", NameOf(path), kRowFileTokenCountMax));
}

}  // namespace

std::span<const int32_t> TokenDocuments::of(size_t document) const {
  const size_t begin = documents[document].begin;
  const size_t end =
      document + 1 < documents.size() ? documents[document + 1].begin : tokens.size();
  return std::span(tokens).subspan(begin, end - begin);
}

absl::StatusOr<ExtraKeys> TokenDocuments::KeysOfAll() const {
  ExtraKeys all;
  for (const Document& document : documents) {
    for (ExtraKey key : document.extra_keys) {
      if (key.token_count == 0 && documents.size() > 1) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s: an extra key covers its whole document, but all documents are one "
                            "sequence\n  --cut "
                            "document makes each one a sequence",
                            document.origin));
      }
      if (key.token_count != 0) key.begin += document.begin;
      all.push_back(std::move(key));
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

absl::StatusOr<TokenDocuments> ReadTokenLines(const std::vector<std::string>& paths,
                                              uint32_t vocabulary, uint32_t token_count_max) {
  TokenDocuments result;
  const uint64_t limit = LimitOf(token_count_max);
  std::string line;
  for (const std::string& path : paths) {
    CKV_ASSIGN_OR_RETURN(TextFile in, TextFile::Open(path));
    for (uint64_t number = 1; result.tokens.size() < limit; ++number) {
      const std::string origin = absl::StrFormat("%s:%d", NameOf(path), number);
      const absl::StatusOr<bool> more = ReadLine(in, line);
      if (!more.ok()) return Annotate(more.status(), origin);
      if (!*more) break;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;  // as editors leave one
      const auto begin = static_cast<uint32_t>(result.tokens.size());
      ExtraKeys keys;
      CKV_RETURN_IF_ERROR(Annotate(
          ParseLine(line, vocabulary, limit - result.tokens.size(), result.tokens, keys), origin));
      result.documents.push_back({begin, origin, std::move(keys)});
    }
    CKV_RETURN_IF_ERROR(Annotate(in.CheckUnchanged(), NameOf(path)));
    CKV_RETURN_IF_ERROR(CheckCount(path, result.tokens));
  }
  if (result.tokens.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: empty", NameOf(paths.front())));
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
    result.documents.push_back({static_cast<uint32_t>(result.tokens.size()), NameOf(path), {}});
    result.tokens.insert(result.tokens.end(), tokens.begin(), tokens.end());
    CKV_RETURN_IF_ERROR(CheckCount(path, result.tokens));
  }
  return result;
}

absl::StatusOr<std::vector<int32_t>> ReadTextTokens(const std::string& path,
                                                    uint32_t token_count_max) {
  CKV_ASSIGN_OR_RETURN(TextFile in, TextFile::Open(path));
  const uint64_t limit = LimitOf(token_count_max);
  std::vector<int32_t> tokens;
  while (tokens.size() < limit) {
    const absl::StatusOr<std::string_view> bytes = in.Peek();
    if (!bytes.ok()) return Annotate(bytes.status(), NameOf(path));
    if (bytes->empty()) break;
    const std::string_view part = bytes->substr(0, limit - tokens.size());
    for (const char c : part) tokens.push_back(static_cast<unsigned char>(c));
    in.Take(part.size());
  }
  CKV_RETURN_IF_ERROR(Annotate(in.CheckUnchanged(), NameOf(path)));
  if (tokens.empty()) return absl::InvalidArgumentError(absl::StrFormat("%s: empty", NameOf(path)));
  CKV_RETURN_IF_ERROR(CheckCount(path, tokens));
  return tokens;
}

}  // namespace ckv::ctl
