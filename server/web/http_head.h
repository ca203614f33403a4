// The head of an HTTP/1 request, in bytes from somebody who is not trusted.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace ckv {

// A head that is longer is refused. Browsers send about 1 KiB.
inline constexpr size_t kHttpHeadBytesMax = 8192;

struct HttpHead {
  std::string method;
  std::string path;   // decoded, begins with '/'
  std::string query;  // as sent, without the '?'
};

// Returns whether `bytes` have the empty line that ends a head.
bool HttpHeadIsWhole(std::string_view bytes);

// Reads the first line of a whole head. Fields are not read: no answer depends on one.
//   InvalidArgument     it is no HTTP/1 request, or its path is not well-formed.
absl::StatusOr<HttpHead> ParseHttpHead(std::string_view bytes);

// Returns the decoded value of `key` in a query string, "" if there is none. At most 1 KiB.
std::string QueryValue(std::string_view query, std::string_view key);

}  // namespace ckv
