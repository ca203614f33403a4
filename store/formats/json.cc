#include "store/formats/json.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"

namespace ckv {

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, int depth_max) {
  using Event = nlohmann::json::parse_event_t;
  // nlohmann's lexer takes a NUL for the end of the text.
  if (text.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError("not JSON: a NUL byte");
  }
  absl::Status refused;
  std::vector<std::set<std::string>> keys;  // the keys of each object that is open
  const auto check = [&](int depth, Event event, const nlohmann::json& parsed) {
    if (!refused.ok()) return false;
    if ((event == Event::object_start || event == Event::array_start) && depth >= depth_max) {
      refused = absl::InvalidArgumentError(absl::StrFormat("nested deeper than %d", depth_max));
      return false;
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get_ref<const std::string&>()).second) {
      // A parser keeps one of the two; which one must not decide what a file means.
      refused = absl::InvalidArgumentError(absl::StrFormat(
          "the key '%s' twice",
          absl::Utf8SafeCHexEscape(parsed.get_ref<const std::string&>().substr(0, 64))));
    }
    return refused.ok();
  };
  nlohmann::json document = nlohmann::json::parse(text.begin(), text.end(), check,
                                                  /*allow_exceptions=*/false);
  if (!refused.ok()) return refused;
  if (document.is_discarded()) return absl::InvalidArgumentError("not JSON");
  return document;
}

}  // namespace ckv
