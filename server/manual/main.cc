// Writes the pages of both programs into a folder: ckv_pages FOLDER

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

#include "server/manual/pages.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: ckv_pages FOLDER\n");
    return 2;
  }
  const std::string folder = argv[1];
  const ckv::PageProgram daemon = ckv::DaemonProgram(), ctl = ckv::CtlProgram();
  const std::pair<std::string, std::string> files[] = {
      {"ckvd.yaml", ckv::ConfigFile()},          {"ckvd.8", ckv::ManualPage(daemon)},
      {"ckvctl.1", ckv::ManualPage(ctl)},        {"ckvd.bash", ckv::BashCompletion(daemon)},
      {"ckvctl.bash", ckv::BashCompletion(ctl)}, {"_ckvd", ckv::ZshCompletion(daemon)},
      {"_ckvctl", ckv::ZshCompletion(ctl)},      {"ckvd.fish", ckv::FishCompletion(daemon)},
      {"ckvctl.fish", ckv::FishCompletion(ctl)},
  };
  for (const auto& [name, text] : files) {
    std::ofstream out(folder + "/" + name, std::ios::binary | std::ios::trunc);
    out << text << std::flush;
    if (!out.good()) {
      std::fprintf(stderr, "ckv_pages: %s/%s cannot be written\n", folder.c_str(), name.c_str());
      return 1;
    }
  }
  return 0;
}
