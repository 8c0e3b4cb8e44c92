-- slime for Lmod. Environment Modules takes 0.1.0 beside this file.
--
--   module use PREFIX/modulefiles (or modules of the source tree); module load slime
--
-- The prefix is two folders above this file's own, so the tree may be moved.
local home = myFileName():match("^(.*)/[^/]+/[^/]+/[^/]+$")
-- An installed tree has bin, a source tree what cargo builds.
local bin = isDir(home .. "/bin") and home .. "/bin" or home .. "/target/release"

whatis("Name: slime")
whatis("Version: 0.1.0")
whatis("Description: reinforcement-learning post-training of language models as small Unix tools")
help("slime 0.1.0: reinforcement-learning post-training of language models as small Unix tools.\n" ..
    "Sets SLIME_HOME to " .. home .. ", and PATH; 'slime-train --help' and 'man slime-train' say the rest.\n" ..
    "For completions in zsh: fpath+=($SLIME_HOME/share/zsh/site-functions) before compinit.")

family("slime")
setenv("SLIME_HOME", home)
prepend_path("PATH", bin)
-- The MPI that came with the tree, where the site had none of its own.
if isDir(home .. "/lib/openmpi/bin") then prepend_path("PATH", home .. "/lib/openmpi/bin") end
if isDir(home .. "/share/man") then
    -- An empty part stands for the system's own pages.
    append_path("MANPATH", ":")
    prepend_path("MANPATH", home .. "/share/man")
end
if isDir(home .. "/share/bash-completion") then
    -- Where bash and fish look for completions. Unset means these defaults, which a lone folder of ours would hide.
    local share, defaults = home .. "/share", "/usr/local/share:/usr/share"
    local dirs = os.getenv("XDG_DATA_DIRS") or ""
    if dirs == "" or dirs == share .. ":" .. defaults then append_path("XDG_DATA_DIRS", defaults) end
    prepend_path("XDG_DATA_DIRS", share)
end
