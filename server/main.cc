// ckvd: reads its configuration and becomes what it says.

#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "server/config.h"
#include "server/daemon.h"

// What is not rows is control messages of up to 1 MiB, freed by other threads than allocated them.
// glibc keeps such memory in an arena a thread and stops unmapping it after the first is freed: 74
// to 103 MiB over `store.capacity` while one loader sends as fast as it can, 45 to 63 MiB so, and
// no slower.
static void KeepHeapSmall() {
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
}

int main(int argc, char** argv) {
  KeepHeapSmall();
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
