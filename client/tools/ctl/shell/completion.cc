// Writes completion scripts. The shells share two tables that are made from the options: the words
// that may follow each command, and the values of each option. bash and zsh also share the code
// that finds the command of a line (Body); fish has conditions for each word instead.

#include "client/tools/ctl/shell/completion.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace ckv {
namespace {

bool IsFlag(const std::string& name) { return name.starts_with("-"); }

// Text between single quotes; `escaped` is how the shell writes one inside.
std::string Quoted(std::string_view text, std::string_view escaped) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "'";
}

// The words that may follow a command: its verbs and flags, and the program's own flags.
std::vector<std::string> WordsOf(const PageProgram& program, const PageCommand& command) {
  std::vector<std::string> words = command.verbs;
  for (const PageCommand* one : {&command, &program.commands.front()}) {
    for (const PageOption& option : one->options) {
      for (const std::string& name : option.names) {
        if (IsFlag(name) && std::find(words.begin(), words.end(), name) == words.end()) {
          words.push_back(name);
        }
      }
    }
  }
  return words;
}

bool TakesCorpus(const PageCommand& command) {
  return std::ranges::any_of(command.options, [](const PageOption& option) {
    return option.is_corpus && !IsFlag(option.names.front());
  });
}

// Branches of a shell's `case`: the words after each command, and the values of each flag.
std::string WordCases(const PageProgram& program) {
  std::string cases;
  for (const PageCommand& command : program.commands) {
    cases += absl::StrFormat("    '%s') offers='%s'%s ;;\n", command.path,
                             absl::StrJoin(WordsOf(program, command), " "),
                             TakesCorpus(command) ? " corpus=1" : "");
  }
  return cases;
}

std::string ValueCases(const PageProgram& program) {
  std::string cases;
  for (const PageCommand& command : program.commands) {
    for (const PageOption& option : command.options) {
      if (option.value.empty() || !IsFlag(option.names.front())) continue;
      for (const std::string& name : option.names) {
        // The program's own flags may follow any command.
        const std::string line = absl::StrFormat("'%s %s'", command.path, name);
        const std::string values =
            option.is_corpus
                ? "takes=corpus"
                : absl::StrFormat("takes=1 values='%s'", absl::StrJoin(option.choices, " "));
        cases +=
            absl::StrFormat("    %s%s) %s ;;\n", command.path.empty() ? "*" : "", line, values);
      }
    }
  }
  return cases;
}

// The verbs that may follow a command, from which the shell finds the command of a line.
std::string PathCases(const PageProgram& program) {
  std::string cases;
  for (const PageCommand& command : program.commands) {
    if (!command.path.empty())
      cases += absl::StrFormat("%s'%s'", cases.empty() ? "" : "|", command.path);
  }
  return cases.empty() ? "" : absl::StrFormat("      %s) path=$next ;;\n", cases);
}

// A function that prints the names of corpora, one a line, within a second. A fleet that does not
// answer has none. Its arguments are the options that name the fleet.
std::string CorpusNames(const PageProgram& program) {
  return absl::StrFormat(
      "_%s_corpora() {\n"
      "  %s corpus list -o json --rpc-timeout 1000 \"$@\" 2>/dev/null |\n"
      "    sed -n 's/^ *\"name\": \"\\(.*\\)\",*$/\\1/p'\n"
      "}\n",
      program.name, program.name);
}

bool HasCorpora(const PageProgram& program) {
  return std::ranges::any_of(program.commands, [](const PageCommand& command) {
    return std::ranges::any_of(command.options,
                               [](const PageOption& option) { return option.is_corpus; });
  });
}

// The common part of the bash and zsh scripts: finds the command of the line, and the words that
// may follow. `before` has the words before `current`, the one to complete, without the program.
std::string Body(const PageProgram& program) {
  std::string names;
  if (HasCorpora(program)) {
    names = absl::StrFormat(
        "  if [[ $takes == corpus || ( -z $takes && -n $corpus && $current != -* ) ]]; then\n"
        "    values=\"$(_%s_corpora \"${fleet[@]}\")\"\n"
        "  fi\n",
        program.name);
  }
  return absl::StrFormat(
      "  local word path='' next words='' values='' takes='' last='' corpus=''\n"
      "  local -a fleet=()\n"
      "  for word in \"${before[@]}\"; do\n"
      "    next=\"${path:+$path }$word\"\n"
      "    case $next in\n%s      *) ;;\n    esac\n"
      "    case $last in --directory|--requester|--tenant) fleet+=(\"$last\" \"$word\") ;; esac\n"
      "    last=$word\n"
      "  done\n"
      "  case \"$path $last\" in\n%s    *) ;;\n  esac\n"
      "  case $path in\n%s  esac\n"
      "%s",
      PathCases(program), ValueCases(program), WordCases(program), names);
}

}  // namespace

std::string BashCompletion(const PageProgram& program) {
  return absl::StrFormat(
      "# bash completion of %s, written from its own table of options.\n"
      "%s"
      "_%s() {\n"
      "  local offers='' current=${COMP_WORDS[COMP_CWORD]}\n"
      "  local -a before=(\"${COMP_WORDS[@]:1:COMP_CWORD-1}\")\n"
      "%s"
      "  if [ -n \"$values\" ]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$values\" -- \"$current\")\n"
      "  elif [ \"$takes\" = corpus ]; then\n"
      "    COMPREPLY=()\n"
      "  elif [ -n \"$takes\" ]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
      "  else\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$offers\" -- \"$current\")\n"
      "  fi\n"
      "  [ -n \"$takes\" ] || [ ${#COMPREPLY[@]} -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "
      "\"$current\")\n"
      "}\n"
      "complete -o filenames -F _%s %s\n",
      program.name, HasCorpora(program) ? CorpusNames(program) : "", program.name, Body(program),
      program.name, program.name);
}

// The file is a function's body in zsh's folder of completions, and a script if it is sourced.
std::string ZshCompletion(const PageProgram& program) {
  return absl::StrFormat(
      "#compdef %s\n"
      "# zsh completion of %s, written from its own table of options.\n"
      "%s"
      "_%s() {\n"
      "  local offers='' current=${words[CURRENT]}\n"
      "  local -a before=(\"${(@)words[2,CURRENT-1]}\")\n"
      "%s"
      "  if [[ -n $values ]]; then\n"
      "    compadd -- ${=values}\n"
      "    [[ -n $takes ]] || _files\n"
      "  elif [[ $takes == corpus ]]; then\n"
      "    return 1\n"
      "  elif [[ -n $takes ]]; then\n"
      "    _files\n"
      "  else\n"
      "    compadd -- ${=offers}\n"
      "    _files\n"
      "  fi\n"
      "}\n"
      "if [[ ${funcstack[1]} == _%s ]]; then _%s \"$@\"; else compdef _%s %s; fi\n",
      program.name, program.name, HasCorpora(program) ? CorpusNames(program) : "", program.name,
      Body(program), program.name, program.name, program.name, program.name);
}

std::string FishCompletion(const PageProgram& program) {
  std::string text = absl::StrFormat(
      "# fish completion of %s, written from its own table of options.\n"
      "# True if the words so far have these verbs, in order.\n"
      "function __fish_%s_at\n"
      "  set -l left $argv\n"
      "  for word in (commandline -opc)[2..]\n"
      "    if test (count $left) -gt 0; and test $word = $left[1]\n"
      "      set left $left[2..]\n"
      "    end\n"
      "  end\n"
      "  test (count $left) -eq 0\n"
      "end\n",
      program.name, program.name);
  if (HasCorpora(program)) {
    text += absl::StrFormat(
        "function __fish_%s_corpora\n"
        "  %s corpus list -o json --rpc-timeout 1000 2>/dev/null |"
        " string replace -rf '^ *\"name\": \"(.*)\",*$' '$1'\n"
        "end\n",
        program.name, program.name);
  }
  for (const PageCommand& command : program.commands) {
    std::string begin = absl::StrFormat("complete -c %s", program.name);
    if (!command.path.empty()) {
      begin += absl::StrFormat(" -n '__fish_%s_at %s'", program.name, command.path);
    }
    for (const std::string& verb : command.verbs) {
      const auto named = std::find_if(
          program.commands.begin(), program.commands.end(), [&](const PageCommand& one) {
            return one.path == (command.path.empty() ? verb : command.path + " " + verb);
          });
      text += absl::StrFormat("%s -a %s -d %s\n", begin, verb, Quoted(named->help, "\\'"));
    }
    if (TakesCorpus(command)) {
      text += absl::StrFormat("%s -a '(__fish_%s_corpora)'\n", begin, program.name);
    }
    for (const PageOption& option : command.options) {
      if (!IsFlag(option.names.front())) continue;
      text += begin;
      for (const std::string& name : option.names) {
        const bool is_long = name.starts_with("--");
        text += absl::StrFormat(" -%s %s", is_long ? "l" : "s", name.substr(is_long ? 2 : 1));
      }
      if (!option.value.empty()) text += " -r";
      if (option.is_corpus) text += absl::StrFormat(" -f -a '(__fish_%s_corpora)'", program.name);
      if (!option.choices.empty()) {
        text += absl::StrFormat(" -f -a '%s'", absl::StrJoin(option.choices, " "));
      }
      text += absl::StrFormat(" -d %s\n", Quoted(option.help, "\\'"));
    }
  }
  return text;
}

}  // namespace ckv
