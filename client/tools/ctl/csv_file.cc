#include "client/tools/ctl/csv_file.h"

#include "absl/strings/str_format.h"

namespace ckv::ctl {
namespace {

std::string CsvCell(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_number_float()) return absl::StrFormat("%.6g", value.get<double>());
  if (!value.is_string()) return value.dump();
  const std::string& text = value.get_ref<const std::string&>();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char one : text) quoted += one == '"' ? "\"\"" : std::string(1, one);
  return quoted + "\"";
}

}  // namespace

std::string CsvOf(const Json& rows) {
  std::string text;
  for (const Json& row : rows) {
    const Json& titles = rows.front();
    if (text.empty()) {
      for (const auto& [title, value] : titles.items()) text += (text.empty() ? "" : ",") + title;
      text += "\n";
    }
    std::string line;
    for (const auto& [title, value] : titles.items())
      line += CsvCell(row.value(title, Json())) + ",";
    line.back() = '\n';
    text += line;
  }
  return text;
}

}  // namespace ckv::ctl
