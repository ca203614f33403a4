// ckvd: reads its configuration and becomes what it says.

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "server/config.h"
#include "server/daemon.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto parsed =
      ckv::ReadConfig(arguments, [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        return value == nullptr ? std::nullopt : std::optional<std::string>(value);
      });
  if (!parsed.ok()) {
    const std::string message(parsed.status().message());
    std::fprintf(stderr, "%s\n", message.c_str());
    return 2;
  }
  if (parsed->action == ckv::ConfigAction::kPrint) {
    std::fputs(parsed->text.c_str(), stdout);
    return 0;
  }
  return ckv::RunDaemon(parsed->config);
}
