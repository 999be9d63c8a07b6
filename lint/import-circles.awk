# The import circles among the files of one crate, one line each. `src` is its folder, with a slash at the end.
function module_of(path) {
    path = substr(path, length(src) + 1)
    sub(/\.rs$/, "", path); sub(/\/mod$/, "", path)
    if (path == "lib" || path == "main") path = ""
    gsub(/\//, "::", path)
    return path
}
function parent_of(module) { return sub(/(::)?[^:]+$/, "", module) ? module : "" }
# Whether one is the module and the other one is below it.
function related(a, b) { return a == b || a == "" || b == "" || index(b, a "::") == 1 || index(a, b "::") == 1 }
# Notes that a module imports a path (without crate::): an edge to the longest part of the path that is a file.
function import(from, path) {
    for (; path != ""; path = parent_of(path)) if (path in file) break
    if (!related(from, path) && !((from, path) in edge)) { edge[from, path] = 1; out[from] = out[from] " " path }
}
# Takes a tree of paths that begins the text, after crate:: or super::.
function take_tree(from, base, text,    depth, now, stack, token) {
    now = base
    while (match(text, /^[ \n]*(::|[A-Za-z0-9_]+|[{},*])/)) {
        token = substr(text, 1, RLENGTH); gsub(/[ \n]/, "", token); text = substr(text, RLENGTH + 1)
        if (token == "{") { if (last != "::") return import(from, now); stack[++depth] = now }
        else if (token == "," || token == "}") {
            import(from, now)
            if (!depth) return
            now = stack[depth]
            if (token == "}" && !--depth) return
        }
        else if (token == "as") { sub(/^[ \n]*[A-Za-z0-9_]+/, "", text) }
        else if (token == "super") now = parent_of(now)
        else if (token == "::" || token == "self" || token == "*") {}
        else if (last != "::" && last != "{" && last != ",") break
        else now = (now == "" ? "" : now "::") token
        last = token
    }
    import(from, now)
}
function scan(module,    text, base) {
    text = code[module]
    while (match(text, /(^|[^A-Za-z0-9_:])(crate|super)::/)) {
        base = substr(text, RSTART, RLENGTH) ~ /crate/ ? "" : parent_of(module)
        text = substr(text, RSTART + RLENGTH); last = "::"
        take_tree(module, base, text)
    }
}
# The shortest way from a module back to itself.
function circle(start,    queue, head, tail, from, at, next_ones, n, i, way) {
    queue[tail++] = start
    while (head < tail) {
        at = queue[head++]
        n = split(out[at], next_ones, " ")
        for (i = 1; i <= n; i++) {
            if (next_ones[i] == start) {
                way = name[start]
                for (; at != start; at = from[at]) way = name[at] " -> " way
                return name[start] " -> " way
            }
            if (!(next_ones[i] in from)) { from[next_ones[i]] = at; queue[tail++] = next_ones[i] }
        }
    }
    return ""
}
FNR == 1 { module = module_of(FILENAME); file[module] = 1; name[module] = FILENAME; order[++files] = module; in_tests = 0; test_only = 0 }
in_tests { next }
test_only && /^[ \t]*(pub(\([a-z]+\))? )?mod [a-z0-9_]+ *\{/ { in_tests = 1; next }
test_only && /^[ \t]*(pub(\([a-z]+\))? )?mod [a-z0-9_]+;/ {
    gsub(/^.*mod |;.*$/, ""); test_file[(module == "" ? "" : module "::") $0] = 1
}
{ test_only = /#\[cfg\(test\)\]/ || (test_only && /^[ \t]*#\[/) }
{ sub(/(^|[^:"])\/\/.*/, ""); code[module] = code[module] $0 "\n" }
END {
    for (i = 1; i <= files; i++) if (!(order[i] in test_file)) scan(order[i])
    for (i = 1; i <= files; i++) {
        found = circle(order[i])
        # One circle is found from each of its files: it is printed from the first.
        n = split(found, parts, " -> ")
        first = 1
        for (j = 2; j < n; j++) if (parts[j] < parts[first]) first = j
        if (n && first == 1) print "  " found
    }
}
