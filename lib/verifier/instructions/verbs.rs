//! Whether a response begins with a verb, told by a list of common English verbs and by endings.
//!
//! `IFBench` asks a part-of-speech tagger, whose weights are not carried here. What the two agree on is measured by the
//! test of its verdicts. As that tagger does, a capital word before another capital word is read as a name.

/// Verbs that answers begin with, in their base form, and forms that endings do not tell.
const VERBS: &str = "accept access achieve act adapt add address adjust adopt advise aim align allow analyze answer apply \
    appreciate approach approve arrange ask assemble assess assign assist assume attach attempt avoid balance be \
    become begin believe blend boil book boost bring browse build buy calculate call can capture carry catch celebrate \
    change check choose clarify clean clear click close collaborate collect combine come commit communicate compare \
    complete compose compute conduct configure connect consider construct consult contact continue contribute convert \
    cook cool copy could count cover create cultivate customize cut decide declare define deliver demonstrate depend \
    deploy describe design determine develop devise did discover discuss display dive divide do does drag draw dream \
    drink drive drop earn eat edit educate eliminate embark embrace emphasize employ enable encourage engage enhance \
    enjoy ensure enter envision establish estimate evaluate examine exclude execute exercise expand expect experience \
    experiment explain explore express extend extract feel fight fill find finish fix focus follow foster gather \
    generate get give go grab grow guide had handle has have hear help hire hold identify ignore illustrate imagine \
    implement improve include increase incorporate indicate input insert inspire install integrate introduce \
    investigate investing invite is are am was were join journey jump keep know launch lead learn leave let leverage \
    limit list listen live locate look love maintain make manage mark master may maximize measure meet mention \
    minimize mix modify monitor move must navigate note notice observe obtain offer open optimize order organize \
    outline overcome participate pay perform pick picture place plan play ponder pour practice prepare present \
    preserve prevent prioritize produce promote protect prove provide pull purchase pursue push put raise reach read \
    realize recall receive recognize recommend record reduce refer reflect register remain remember remind remove \
    repeat replace report represent request require research resolve respect respond rest return reveal review rewrite \
    run save say schedule search see seek select sell send serve set shall share shift should show simplify sing sit \
    solve sort speak specify spend stand start state stay step stick stop store strengthen strive study submit suggest \
    summarize support surround take talk teach tell tend test thank think throw track train transform translate travel \
    treat trust try turn type understand unleash unlock update upgrade use utilize validate verify view visit \
    visualize wait wake walk want watch wear welcome will wish work would write";
/// Words with the endings below that are no verbs.
const OTHERS: &str = "thing king ring spring string morning evening nothing something anything everything during \
    according hundred red indeed bed seed need speed breed";

/// Whether `first` is a verb where `second` follows it.
pub(super) fn is_verb(first: &str, second: &str) -> bool {
    if second.starts_with(char::is_uppercase) && first.starts_with(char::is_uppercase) && second.len() > 1 {
        return false;
    }
    let word = first.to_lowercase();
    let listed = |list: &str| list.split_whitespace().any(|known| known == word);
    listed(VERBS) || (word.len() > 4 && (word.ends_with("ing") || word.ends_with("ed")) && !listed(OTHERS))
}
