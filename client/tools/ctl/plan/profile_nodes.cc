#include "client/tools/ctl/plan/profile_nodes.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv::ctl {

absl::StatusOr<std::string> ReadPlanFile(const std::string& path, size_t bytes_max) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"),
                                                             &std::fclose);
  if (file == nullptr) {
    const std::string why = absl::StrFormat("%s: %s", path, std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(why) : absl::InvalidArgumentError(why);
  }
  std::string text;
  char block[1 << 16];
  size_t count = 0;
  while ((count = std::fread(block, 1, sizeof(block), file.get())) > 0) {
    text.append(block, count);
    if (text.size() > bytes_max) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: larger than %d bytes", path, bytes_max));
    }
  }
  if (std::ferror(file.get()) != 0)
    return absl::InvalidArgumentError(absl::StrFormat("%s: cannot be read", path));
  return text;
}

std::string ProfileNodes::Under(const std::string& key, const std::string& name) {
  return key.empty() ? name : key + "." + name;
}

absl::Status ProfileNodes::Refuse(const YAML::Node& node, const std::string& key,
                                  std::string_view why) const {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s:%d: %s: %s", path_, node.Mark().line + 1, key, why));
}

absl::Status ProfileNodes::CheckKeys(const YAML::Node& map, const std::string& key,
                                     Keys known) const {
  if (!map.IsMap()) return Refuse(map, key.empty() ? "profile" : key, "keys are expected");
  for (const auto& entry : map) {
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "?";
    bool found = false;
    std::string names;
    for (const char* one : known) {
      found = found || name == one;
      names += (names.empty() ? "" : ", ") + std::string(one);
    }
    if (!found) return Refuse(entry.first, Under(key, name), "unknown key; known are: " + names);
    for (const auto& other : map) {
      if (other.first.Mark().pos < entry.first.Mark().pos && other.first.Scalar() == name)
        return Refuse(entry.first, Under(key, name), "occurs twice");
    }
  }
  return absl::OkStatus();
}

absl::Status ProfileNodes::Find(const YAML::Node& map, const std::string& key, const char* name,
                                YAML::Node& found) const {
  const YAML::Node node = map[name];
  if (!node) return Refuse(map, Under(key, name), "missing");
  found.reset(node);
  return absl::OkStatus();
}

absl::Status ProfileNodes::Number(const YAML::Node& map, const std::string& key, const char* name,
                                  double& value) const {
  YAML::Node node;
  CKV_RETURN_IF_ERROR(Find(map, key, name, node));
  if (node.IsScalar() && absl::SimpleAtod(node.Scalar(), &value)) return absl::OkStatus();
  return Refuse(node, Under(key, name), "not a number");
}

absl::Status ProfileNodes::Number(const YAML::Node& map, const std::string& key, const char* name,
                                  double from, double to, double& value) const {
  CKV_RETURN_IF_ERROR(Number(map, key, name, value));
  if (value >= from && value <= to) return absl::OkStatus();
  return Refuse(map[name], Under(key, name),
                absl::StrFormat("%g, must be %g to %g", value, from, to));
}

absl::Status ProfileNodes::Count(const YAML::Node& map, const std::string& key, const char* name,
                                 uint32_t from, uint32_t to, uint32_t& value) const {
  YAML::Node node;
  CKV_RETURN_IF_ERROR(Find(map, key, name, node));
  if (node.IsScalar() && absl::SimpleAtoi(node.Scalar(), &value) && value >= from && value <= to)
    return absl::OkStatus();
  return Refuse(node, Under(key, name), absl::StrFormat("not a count of %d to %d", from, to));
}

absl::Status ProfileNodes::Text(const YAML::Node& map, const std::string& key, const char* name,
                                std::string& value) const {
  YAML::Node node;
  CKV_RETURN_IF_ERROR(Find(map, key, name, node));
  if (!node.IsScalar() || node.Scalar().empty())
    return Refuse(node, Under(key, name), "a text is expected");
  value = node.Scalar();
  return absl::OkStatus();
}

absl::Status ProfileNodes::AtItem(const YAML::Node& list, const std::string& key,
                                  const absl::Status& error) const {
  const std::string text(error.message());
  const size_t end = text.find(']');
  size_t index = 0;
  if (text.starts_with("[") && end != std::string::npos &&
      absl::SimpleAtoi(text.substr(1, end - 1), &index) && index < list.size()) {
    const size_t colon = text.find(": ");
    return Refuse(list[index], key + text.substr(0, colon), text.substr(colon + 2));
  }
  return Refuse(list, key, text);
}

absl::Status ReadYaml(const std::string& path, const std::string& text,
                      const std::function<absl::Status(const YAML::Node& root)>& read) {
  // yaml-cpp reports by exceptions; none passes this function.
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() == 1) return read(documents.front());
    return absl::InvalidArgumentError(
        documents.empty()
            ? absl::StrFormat("%s: empty", path)
            : absl::StrFormat("%s: %d documents, must be one", path, documents.size()));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s:%d: %s", path, error.mark.line + 1, error.msg));
  }
}

}  // namespace ckv::ctl
